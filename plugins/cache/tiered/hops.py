"""Units that move between tiers, in the background and a few at a time.

Down: what a tier got is written to the next one as well, so that it outlives its place here: what
was used again at once, the rest when it has been there for a while, oldest first. Up: what waiting
requests will need is brought to the nearest tier, before anything goes down.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from functools import partial
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .tier import Tiers

_AT_ONCE = 4
_PREFETCH_SHARE = 4
"""One in so many units of the nearest tier may be there for those who have not used it yet."""


class Hops:
    """See the module.

    Attributes:
        prefetched: Units so far that were brought to the nearest tier.
        prefetch_hits: Of these, so many were loaded from there.
        prefetch_wasted: And so many were gone before.
    """

    def __init__(
        self, tiers: Tiers, unit_bytes: int, settle_s: float, kept: Callable[[int, bytes], None]
    ) -> None:
        """Move nothing yet.

        Args:
            tiers: Nearest first.
            unit_bytes: Of a unit.
            settle_s: Seconds after which a unit that was not used again goes down.
            kept: Is told the level and the key of each unit that went down.
        """
        self.prefetched = 0
        self.prefetch_hits = 0
        self.prefetch_wasted = 0
        self._tiers = tiers
        self._unit_bytes = unit_bytes
        self._settle_s = settle_s
        self._kept = kept
        self._unsettled: list[OrderedDict[bytes, float]] = [OrderedDict() for _ in tiers[:-1]]
        self._wanted: OrderedDict[bytes, int] = OrderedDict()
        self._watched: OrderedDict[bytes, None] = OrderedDict()
        self._moving: set[bytes] = set()
        self._buffers = deque(memoryview(bytearray(unit_bytes)) for _ in range(_AT_ONCE))

    def note(self, level: int, key: bytes, now: float) -> None:
        """Note that a tier got a unit, which is to go down in time."""
        if level < len(self._unsettled):
            self._unsettled[level][key] = now + self._settle_s

    def used(self, level: int, key: bytes) -> None:
        """Note that a unit was loaded: it is worth keeping, and goes down next."""
        if level < len(self._unsettled) and key in self._unsettled[level]:
            self._unsettled[level][key] = -inf
            self._unsettled[level].move_to_end(key, last=False)
        if level == 0 and key in self._watched:
            del self._watched[key]
            self.prefetch_hits += 1

    def want(self, keys: Sequence[bytes], sources: Sequence[int]) -> None:
        """Bring units to the nearest tier that are in others."""
        near = self._tiers[0].store.used_bytes() // self._unit_bytes
        room = near // _PREFETCH_SHARE - len(self._wanted) - len(self._watched)
        coming = [pair for pair in zip(keys, sources, strict=True) if pair[1]]
        self._wanted.update(coming[: max(0, room)])

    def due_s(self) -> float:
        """Return when a unit has to go down next; infinite if none has."""
        if len(self._buffers) < _AT_ONCE:
            return inf  # what is under way goes on by itself
        return min((next(iter(one.values())) for one in self._unsettled if one), default=inf)

    def go_on(self, now: float) -> None:
        """Begin as many moves as there are buffers for."""
        while self._buffers and (chosen := self._next(now)) is not None:
            key, source, target = chosen
            buffer = self._buffers.popleft()
            ended = partial(self._read, key, target, buffer)
            if self._tiers[source].read(key, buffer, ended) is None:
                self._buffers.append(buffer)  # its reads serve requests; later again
                if target:
                    self._unsettled[source][key] = now + self._settle_s
                return
            self._moving.add(key)

    def _next(self, now: float) -> tuple[bytes, int, int] | None:
        """Choose a unit, its tier, and the one that it goes to."""
        while self._wanted:
            key, source = self._wanted.popitem(last=False)
            if not self._tiers[0].holds(key):
                return key, source, 0
        for level, unsettled in enumerate(self._unsettled):
            while unsettled:
                key, due_s = next(iter(unsettled.items()))
                if due_s > now:
                    break
                del unsettled[key]
                if not self._tiers[level + 1].holds(key):
                    return key, level, level + 1
        return None

    def _read(self, key: bytes, target: int, buffer: memoryview, ok: bool) -> None:
        is_wanted = key in self._moving
        self._moving.discard(key)
        written = partial(self._written, key, target, buffer)
        if not (ok and is_wanted and self._tiers[target].write(key, buffer, written)):
            self._buffers.append(buffer)

    def _written(self, key: bytes, target: int, buffer: memoryview, ok: bool) -> None:
        self._buffers.append(buffer)
        if not ok:
            return
        if target:
            self._kept(target, key)
            return
        self.prefetched += 1
        self._watched[key] = None

    def count_waste(self) -> None:
        """Count what was prefetched and is gone unused."""
        gone = [key for key in self._watched if not self._tiers[0].holds(key)]
        for key in gone:
            del self._watched[key]
        self.prefetch_wasted += len(gone)

    def names(self) -> set[bytes]:
        """Return the names of all units that move, or are to come nearer."""
        return {*self._moving, *self._wanted}

    def drop(self, key: bytes) -> None:
        """Forget a unit that turned out to be wrong."""
        self._moving.discard(key)
        self._wanted.pop(key, None)
        self._watched.pop(key, None)
        for unsettled in self._unsettled:
            unsettled.pop(key, None)

    def flush(self, until_s: float) -> int:
        """Write down what has not gone down yet, newest first, on this thread.

        Args:
            until_s: Of `time.monotonic`, when to stop.

        Returns:
            How many units were left when the time was over.
        """
        page = memoryview(bytearray(self._buffers[0].nbytes)) if self._buffers else None
        for level, unsettled in enumerate(self._unsettled):
            below = self._tiers[level + 1]
            while unsettled and page is not None and time.monotonic() < until_s:
                key, _ = unsettled.popitem()
                if not below.holds(key) and self._tiers[level].store.get(key, page):
                    below.store.put(key, page)
        return sum(map(len, self._unsettled))
