"""Preemption by swap: who is swapped out, what that takes, and when it can come back."""

from __future__ import annotations

import os
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import NULL_PAGE, SwapCost

from .exports import Outgoing
from .swapped import Swapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .exports import Exports
    from .keeper import Keeper
    from .tables import Tables
    from .tier import Tiers
    from .trays import TrayPool
    from .units import Units


class _Planned(NamedTuple):
    """Units of a request that is to be swapped out.

    Attributes:
        keys: Names of all; those that it alone gets are new.
        out: The units that leave under such a name.
        lost: Tokens that a preemption by recompute would lose.
    """

    keys: list[bytes]
    out: list[Outgoing]
    lost: int


class Swaps:
    """See the module.

    Attributes:
        out: Requests so far that were swapped out.
        refused: Requests so far for which there was no copy.
        back: Requests so far that came back and lacked nothing.
        lost_tokens: Of those that came back: what had been computed and was not there any more.
    """

    def __init__(
        self,
        units: Units,
        tiers: Tiers,
        trays: TrayPool,
        exports: Exports,
        keeper: Keeper,
        *,
        patience_s: float,
        now: Callable[[], float],
        ticket: Callable[[], int],
    ) -> None:
        """Have nobody swapped out yet.

        Args:
            units: Of which form.
            tiers: Where to.
            trays: Through which units leave.
            exports: Have them copied out.
            keeper: Writes them into the tiers.
            patience_s: How long their way down may take.
            now: Seconds.
            ticket: Names what a request may wait for.
        """
        self.out = self.refused = self.back = self.lost_tokens = 0
        self._units = units
        self._tiers = tiers
        self._trays = trays
        self._exports = exports
        self._keeper = keeper
        self._patience_s = patience_s
        self._now = now
        self._ticket = ticket
        self._by_uid: dict[int, Swapped] = {}
        self._by_ticket: dict[int, Swapped] = {}
        self._secret = os.urandom(16)  # a store may outlive the process
        self._count = count()

    def of(self, uid: int) -> Swapped | None:
        """Return what there is of a request that was swapped out."""
        return self._by_uid.get(uid)

    def cost(self, tables: Tables, tokens: int) -> SwapCost | None:
        """Return what swapping a request out takes; None if it cannot be."""
        planned = self._plan(tables, tokens)
        if planned is None:
            return None
        rate = self._tiers[0].rate(self._now())
        return SwapCost(planned.lost, len(planned.out) * self._units.bytes / rate if rate else 0.0)

    def begin(self, tables: Tables, tokens: int) -> Swapped | None:
        """Swap an open request out; None if that cannot be."""
        planned = self._plan(tables, tokens)
        if planned is None:
            return None
        self._exports.leave_now(planned.out)
        swapped = Swapped(
            tables.uid,
            tables.prefix,
            tokens,
            min(tables.committed, tokens),
            planned.keys,
            frozenset(one.key for one in planned.out),
            self._ticket(),
            self._now() + self._patience_s,
            leaving=list(planned.keys),
        )
        self._by_uid[tables.uid] = self._by_ticket[swapped.ticket] = swapped
        self.out += 1
        return swapped

    def _plan(self, tables: Tables, tokens: int) -> _Planned | None:
        size, most = self._units.tokens, self._trays.most_for_loads * self._trays.units
        count = -(-tokens // size)
        if not tokens or count > most:  # it would not come back as a whole
            return None
        full = min(tables.committed, tokens) // size
        texts = self._units.keys(tables.prefix, full)[:full]
        keys = texts[: len(self._tiers.sources(texts))]  # most, asked for at once
        out: list[Outgoing] = []
        for place in range(len(keys), count):
            if place < full and self._is_below(texts[place]):
                keys.append(texts[place])
                continue
            pages = self._pages(tables, place, tokens)
            if pages is None:
                return None
            parent = keys[-1] if keys else b""
            keys.append(self._name())
            out.append(Outgoing(keys[-1], parent, tables, place, pages))
        if not self._exports.has_room(tables, len(out)):
            return None
        return _Planned(keys, out, tokens - out[0].place * size if out else 0)

    def _is_below(self, key: bytes) -> bool:
        return self._exports.is_leaving(key) or self._tiers.holds(key)

    def _name(self) -> bytes:
        number = next(self._count).to_bytes(8, "little")
        return blake2b(self._secret + number, digest_size=16, person=b"swap").digest()

    def _pages(self, tables: Tables, place: int, tokens: int) -> list[list[int]] | None:
        """Return the pages of a unit, the null page where the tokens end; None if it lacks some."""
        count = self._units.pages
        used = min(count, self._units.pages_for(tokens) - place * count)
        pages = [self._units.pages_of(table, place)[:used] for table in tables.groups]
        if any(len(own) < used or NULL_PAGE in own for own in pages):
            return None
        return [[*own, *[NULL_PAGE] * (count - used)] for own in pages]

    def touched(self, tables: Tables) -> set[bytes]:
        """Return names of what those alone have that may have pages of a request in their units."""
        size, swapped = self._units.page_tokens, self._by_uid.values()
        return {
            key for one in swapped if tables.may_be_read_by(one.prefix, size) for key in one.own
        }

    def names(self) -> set[bytes]:
        """Return the names of all units that requests come back to, which are swapped out."""
        return {key for one in self._by_uid.values() for key in one.keys}

    def is_leaving(self, swapped: Swapped) -> bool:
        """Return whether units of a request are still on their way down, and may be."""
        left = swapped.leaving
        while left and not (self._exports.is_leaving(left[-1]) or self._keeper.has(left[-1])):
            left.pop()
        return bool(left) and self._now() < swapped.until_s

    def is_coming(self, ticket: int) -> bool:
        """Return whether a ticket is of a request whose units are still on their way down."""
        swapped = self._by_ticket.get(ticket)
        return swapped is not None and self.is_leaving(swapped)

    def end(self, uid: int, found: int | None) -> Sequence[bytes]:
        """Forget a request that comes back, or never will.

        Args:
            uid: The request, whether it was swapped out or not.
            found: Tokens that it comes back with; None if it does not.

        Returns:
            Names of units that nobody needs any more.
        """
        swapped = self._by_uid.pop(uid, None)
        if swapped is None:
            return ()
        del self._by_ticket[swapped.ticket]
        if found is not None:
            lost = max(0, min(swapped.tokens, len(swapped.prefix.tokens) - 1) - found)
            self.lost_tokens += lost
            self.back += not lost
        return tuple(swapped.own)
