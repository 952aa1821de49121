"""Units on their way down: remembered when they are full, copied out when a tray is worth it.

Writing through costs nothing later: what is evicted from the device is in a tier already. A unit
may leave as long as its request holds the pages, and at the last call before the next launch: its
pages are then given up, or a window has passed them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from camshaft.contracts.moves import PageMove

    from .keeper import Keeper
    from .tables import Tables
    from .tier import Tiers
    from .trays import TrayPool, UnitTray
    from .trust import Trust
    from .units import Units


class Outgoing(NamedTuple):
    """A unit that is to leave.

    Attributes:
        key: Its name.
        parent: Name of the unit before it.
        tables: Whose it is.
        place: Its number in there.
        pages: Of each group, where they leave the tables before the unit does.
    """

    key: bytes
    parent: bytes
    tables: Tables
    place: int
    pages: list[list[int]] | None = None


class _Batch(NamedTuple):
    """Units that the executor copies out."""

    tray: UnitTray
    keys: dict[int, bytes]
    open: set[int]


class Exports:
    """See the module.

    Attributes:
        dropped: Units so far for which there was no tray at the last call.
        exported: Units so far that were copied out.
    """

    def __init__(
        self, units: Units, tiers: Tiers, trays: TrayPool, keeper: Keeper, trust: Trust
    ) -> None:
        self.dropped = 0
        self.exported = 0
        self._units = units
        self._tiers = tiers
        self._trays = trays
        self._keeper = keeper
        self._trust = trust
        self._calm: dict[int, deque[Outgoing]] = {}
        self._count = 0  # of the calm ones
        self._urgent: deque[Outgoing] = deque()
        self._under_way: set[bytes] = set()
        self._batches: dict[int, _Batch] = {}

    def offer(self, tables: Tables, end: int, pages: Sequence[list[list[int]] | None] = ()) -> None:
        """Let the units of a request up to `end`, which are full, leave if no tier has them.

        Args:
            tables: The request.
            end: Number of the unit behind the last.
            pages: Of each unit from `considered` on, where its tables do not keep them.
        """
        first, tables.considered = tables.considered, max(tables.considered, end)
        keys = self._units.keys(tables.prefix, end)
        held = first + len(self._tiers.sources(keys[first:end]))  # mostly all: one look at each
        for place in range(held, end):
            key = keys[place]
            if key in self._under_way or self._tiers.holds(key):
                continue
            self._under_way.add(key)
            parent, own = keys[place - 1] if place else b"", pages[place - first] if pages else None
            one = Outgoing(key, parent, tables, place, own)
            self._calm.setdefault(tables.uid, deque()).append(one)
            self._count += 1
            self._trust.leaves(one)

    def has_room(self, tables: Tables, more: int) -> bool:
        """Return whether a request's units and so many more could all leave now."""
        units = more + len(self._urgent) + len(self._calm.get(tables.uid, ()))
        return units <= self._trays.left_for_exports() * self._trays.units

    def leave_now(self, units: Sequence[Outgoing]) -> None:
        """Let units leave at once that know their pages, under names of their own."""
        self._urgent += units
        self._under_way.update(one.key for one in units)
        for one in units:
            self._trust.leaves(one)

    def is_leaving(self, key: bytes) -> bool:
        """Return whether a unit is to leave, or is being copied out."""
        return key in self._under_way

    def names(self) -> Collection[bytes]:
        """Return the names of all units that are to leave, or are being copied out."""
        return self._under_way

    def last_call(self, tables: Tables) -> None:
        """Let a request's units leave now: its pages may be reused by the next step."""
        calm = self._calm.pop(tables.uid, None)
        if calm is not None:
            self._count -= len(calm)
            self._urgent += calm

    def take(self, ticket: Callable[[], int]) -> list[PageMove]:
        """Return the moves that are to begin now."""
        moves: list[PageMove] = []
        while self._trays.left_for_exports() > 0 and (
            self._urgent or self._count >= self._trays.units
        ):
            moves += self._pack(ticket)
        self.dropped += len(self._urgent)
        self._under_way.difference_update(one.key for one in self._urgent)
        self._urgent.clear()
        return moves

    def _pack(self, ticket: Callable[[], int]) -> tuple[PageMove, ...]:
        """Fill a tray: with the urgent ones, and what else there is room for."""
        chosen: list[tuple[Outgoing, list[list[int]]]] = []
        while len(chosen) < self._trays.units and (self._urgent or self._count):
            one = self._urgent.popleft() if self._urgent else self._next_calm()
            pages = one.pages or one.tables.unit(self._units, one.place)
            if pages is None:
                self._under_way.discard(one.key)
            else:
                chosen.append((one, pages))
        if not chosen:
            return ()
        tray = self._trays.take(len(chosen))
        groups = range(len(self._units.page_bytes))
        by_group = [[page for _, pages in chosen for page in pages[group]] for group in groups]
        moves = tray.moves(by_group, ticket)
        keys = {place: one.key for place, (one, _) in enumerate(chosen)}
        batch = _Batch(tray, keys, {move.ticket for move in moves})
        self._batches.update(dict.fromkeys(batch.open, batch))
        return moves

    def _next_calm(self) -> Outgoing:
        uid, calm = next(iter(self._calm.items()))
        one = calm.popleft()
        self._count -= 1
        if not calm:
            del self._calm[uid]
        return one

    def drop(self, keys: Collection[bytes]) -> None:
        """Let none of these reach a tier."""
        for uid, calm in list(self._calm.items()):
            kept = deque(one for one in calm if one.key not in keys)
            self._count -= len(calm) - len(kept)
            self._calm[uid] = kept
            if not kept:
                del self._calm[uid]
        self._urgent = deque(one for one in self._urgent if one.key not in keys)
        for batch in self._batches.values():
            for place in [place for place, key in batch.keys.items() if key in keys]:
                del batch.keys[place]
        self._under_way.difference_update(keys)

    def moved(self, ticket: int, ok: bool) -> bool:
        """Note that a move has ended; False if it was none of these."""
        batch = self._batches.pop(ticket, None)
        if batch is None:
            return False
        batch.open.discard(ticket)
        if not ok:
            self._under_way.difference_update(batch.keys.values())
            batch.keys.clear()
        if not batch.open:
            self._under_way.difference_update(batch.keys.values())
            self.exported += len(batch.keys)
            self._keeper.keep(batch.tray, batch.keys)
        return True

    def trays(self) -> list[UnitTray]:
        """Return the trays that the executor fills."""
        return list({id(one.tray): one.tray for one in self._batches.values()}.values())
