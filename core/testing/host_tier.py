"""A KV manager with a tier in the host's memory and nothing cached on the device.

For tests of everything but caches: what requests leave behind is exported, and comes back some
turns later, or in part, or not at all, as the test says.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ..contracts.cache import (
    CacheSpec,
    Delta,
    Hit,
    NoSpace,
    PoolUsage,
    Prefix,
    TableWrite,
    Wait,
)
from ..contracts.moves import NO_MOVES, Moved, Moves, PageMove
from .counting_cache import CountingCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contracts.moves import Tray

Key = tuple[object, ...]


class Fate(NamedTuple):
    """What becomes of a transfer.

    Attributes:
        turns: That it takes.
        pages: That are found, at most.
    """

    turns: int = 1
    pages: int = 1000


class _Transfer:
    """Pages that are being brought for a request that waits."""

    def __init__(self, ticket: int, prefix: Prefix, pages: list[int], fate: Fate) -> None:
        self.ticket = ticket
        self.prefix = prefix
        self.pages = pages
        self.turns = fate.turns
        self.found = min(len(pages), fate.pages)
        self.tray: Tray | None = None

    @property
    def is_done(self) -> bool:
        return self.turns <= 0


class HostTier(CountingCache):
    """See the module.

    Attributes:
        exported: Pages that the tier got.
        loaded: Pages that came back.
        prefetched: Requests for which that was asked.
        closed: Whether it was.
    """

    has_tiers = True

    def __init__(self, spec: CacheSpec, fate: Callable[[], Fate] = Fate) -> None:
        """Keep nothing yet.

        Args:
            spec: With one full group, and trays.
            fate: Of the next transfer.
        """
        super().__init__(spec)
        self.exported = self.loaded = 0
        self.prefetched: list[int] = []
        self.closed = False
        self._fate = fate
        self._tickets = count(1)
        self._kept: dict[Key, bytes] = {}
        self._prefixes: dict[int, Prefix] = {}
        self._commits: dict[int, list[tuple[int, int]]] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._exports: list[PageMove] = []
        self._loads: list[PageMove] = []
        self._storing: dict[int, tuple[Tray, list[Key]]] = {}

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """What came is ready; what the tier has could come."""
        for one in self._transfers.values():
            if one.prefix is prefix and one.is_done:
                return Hit(one.found * self.page_tokens)
        keys = self._keys(prefix, limit)
        held = next((at for at, key in enumerate(keys) if key not in self._kept), len(keys))
        return Hit(0, held * self.page_tokens)

    def _keys(self, prefix: Prefix, tokens: int) -> list[Key]:
        size = self.page_tokens
        ends = range(size, tokens + 1, size) if self.spec.prefix else ()
        return [(prefix.salt, prefix.adapter, *prefix.tokens[:end]) for end in ends]

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`."""
        self._prefixes[uid] = prefix
        if uid not in self._transfers and hit is not None and hit.loading:
            result = super().allocate(uid, prefix, hit.loading)
            if isinstance(result, Delta):
                return self._begin(uid, prefix)
        while True:
            result = super().allocate(uid, prefix, tokens)
            if isinstance(result, Delta):
                return self._admit(uid, result)
            others = [one for one in self._transfers if one != uid]
            if not others:
                return result
            self.withdraw(others[-1])

    def _begin(self, uid: int, prefix: Prefix) -> Wait:
        ticket = next(self._tickets)
        self._transfers[uid] = _Transfer(ticket, prefix, self._held[uid], self._fate())
        self.spec.post(self._tick)
        return Wait(-ticket)

    def _tick(self) -> None:
        """A turn has passed."""
        coming = [one for one in self._transfers.values() if not one.is_done]
        for one in coming:
            one.turns -= 1
            if one.is_done:
                self._fetch(one)
        if coming:
            self.spec.post(self._tick)

    def _fetch(self, one: _Transfer) -> None:
        """Fill a tray with what is found."""
        self.epoch += 1
        keys = self._keys(one.prefix, one.found * self.page_tokens)
        contents = [self._kept[key] for key in keys if key in self._kept]
        one.found = len(contents)
        if contents:
            one.tray = self._tray(len(contents))
        for place, content in enumerate(contents):
            assert one.tray is not None
            one.tray.write(place, memoryview(content))

    def _admit(self, uid: int, delta: Delta) -> Delta:
        came = self._transfers.pop(uid, None)
        if came is None:
            return delta
        self.epoch += 1
        if came.tray is not None:
            pages = tuple(came.pages[: came.found])
            self._loads.append(PageMove(next(self._tickets), 0, pages, came.tray))
            self.loaded += len(pages)
        return Delta((TableWrite(0, 0, list(self._held[uid])),))

    def _tray(self, pages: int) -> Tray:
        assert self.spec.tray is not None
        return self.spec.tray(0, pages)

    def is_coming(self, ticket: int) -> bool:
        """See `KVManager.is_coming`."""
        return any(-one.ticket == ticket and not one.is_done for one in self._transfers.values())

    def withdraw(self, uid: int) -> None:
        """Give up what is brought for a request."""
        if self._transfers.pop(uid, None) is not None:
            super().free(uid, 0)
            self.epoch += 1

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:
        """Note it."""
        self.prefetched.append(uid)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """Note what may be exported."""
        self._commits.setdefault(uid, []).append((step, tokens))
        return super().commit(uid, tokens, step)

    def revoke(self, step: int) -> None:
        """Forget what was noted for a step, and for later ones."""
        for uid, commits in self._commits.items():
            self._commits[uid] = [one for one in commits if one[0] < step]

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """Export what the request leaves behind."""
        prefix = self._prefixes.pop(uid)
        committed = max((tokens for _, tokens in self._commits.pop(uid, ())), default=0)
        keys = self._keys(prefix, committed)
        if forget:
            self._forget(keys)
        else:
            self._export(uid, keys)
        super().free(uid, step)

    def distrust(self, uid: int) -> None:
        """Forget everything: what was whose is not known here any more."""
        self.clear()

    def _export(self, uid: int, keys: list[Key]) -> None:
        new = [at for at, key in enumerate(keys) if key not in self._kept]
        if new:
            ticket, tray = next(self._tickets), self._tray(len(new))
            pages = tuple(self._held[uid][at] for at in new)
            self._exports.append(PageMove(ticket, 0, pages, tray))
            self._storing[ticket] = tray, [keys[at] for at in new]

    def clear(self, *, tiers: bool = True) -> int:
        """Keep nothing, and nothing of what is on its way."""
        if tiers:
            coming = [key for _, keys in self._storing.values() for key in keys]
            self._forget([*self._kept, *coming])
        return super().clear()

    def _forget(self, keys: list[Key]) -> None:
        self.epoch += 1
        for key in keys:
            self._kept.pop(key, None)
        for tray, stored in self._storing.values():
            stored[:] = [() if key in keys else key for key in stored]
            assert tray.count == len(stored)

    def take_moves(self) -> Moves:
        """See `KVManager.take_moves`."""
        if not self._exports and not self._loads:
            return NO_MOVES
        moves = Moves(tuple(self._exports), tuple(self._loads))
        self._exports, self._loads = [], []
        return moves

    def moved(self, ended: Sequence[Moved]) -> None:
        """Keep what was exported."""
        self.epoch += 1
        for one in ended:
            tray, keys = self._storing.pop(one.ticket, (None, []))
            for place, key in enumerate(keys):
                if tray is not None and one.ok and key:
                    page = bytearray(self.spec.groups[0].page_bytes)
                    tray.read(place, memoryview(page))
                    self._kept[key] = bytes(page)
                    self.exported += 1

    def usage(self) -> tuple[PoolUsage, ...]:
        """Pages that are being filled are pinned."""
        (one,) = super().usage()
        filled = sum(len(transfer.pages) for transfer in self._transfers.values())
        return (one._replace(in_use=one.in_use - filled, pinned=one.pinned + filled),)

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        lost = [uid for uid, one in self._transfers.items() if self._held.get(uid) != one.pages]
        return [*super().check_integrity(), *(f"{uid} lost the pages of a load" for uid in lost)]

    def counters(self) -> dict[str, float]:
        """See `KVManager.counters`."""
        return {"exported_pages": self.exported, "loaded_pages": self.loaded}

    def close(self) -> None:
        """Note it."""
        self.closed = True
