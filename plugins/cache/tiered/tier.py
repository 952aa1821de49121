"""The tiers below the device, nearest first: what each holds, and work on it in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from camshaft.contracts.kv_store import KVStore

    from ..stores.lane import Room
    from ..stores.queue import StoreQueue

    Ended = Callable[[bool], None]

_RATE_WEIGHT = 0.3
_RATE_GOOD_S = 30.0
"""What was measured longer ago says nothing about a disk."""


class Tier:
    """A store behind its queue. The loop's thread only.

    Attributes:
        name: Of the component, unique among the tiers.
        store: Keeps units.
        queue: Runs its operations.
    """

    def __init__(self, name: str, store: KVStore, queue: StoreQueue) -> None:
        self.name = name
        self.store = store
        self.queue = queue
        self._landing: set[bytes] = set()
        self._ended: dict[int, tuple[bytes, Ended]] = {}
        self._rate = 0.0
        self._measured_s = 0.0

    def holds(self, key: bytes) -> bool:
        """Return whether a unit is there, or will be when its write ends."""
        return key in self._landing or self.store.contains((key,)) == 1

    def leading(self, keys: Sequence[bytes]) -> int:
        """Return how many leading units it holds."""
        at = self.store.contains(keys)
        while at < len(keys) and keys[at] in self._landing:
            while at < len(keys) and keys[at] in self._landing:
                at += 1
            at += self.store.contains(keys[at:])
        return at

    def read(self, key: bytes, into: memoryview | Room, ended: Ended) -> int | None:
        """Begin to read a unit; None when too much is under way, else a ticket to cancel it by."""
        ticket = self.queue.read(key, into)
        if ticket is not None:
            self._ended[ticket] = key, ended
        return ticket

    def write(self, key: bytes, unit: memoryview | Room, ended: Ended) -> bool:
        """Begin to write a unit; False when too much is under way."""
        ticket = self.queue.write(key, unit)
        if ticket is None:
            return False
        self._landing.add(key)
        self._ended[ticket] = key, ended
        return True

    def names(self) -> set[bytes]:
        """Return the names of all units that are held or being written."""
        return {*self._landing, *self.store.digests()}

    def discard(self, key: bytes) -> None:
        """Forget a unit, also one whose write is under way."""
        self._landing.discard(key)
        self.queue.discard(key)

    def poll(self) -> bool:
        """Tell those who wait for operations that have ended; return whether there were any."""
        done = self.queue.finished()
        for one in done:
            key, ended = self._ended.pop(one.ticket)
            if one.kind == "write":
                self._landing.discard(key)
            ended(one.ok)
        return bool(done)

    def measured(self, read_bytes: int, seconds: float, now: float) -> None:
        """Learn from a load how fast the tier is."""
        rate = read_bytes / max(seconds, 1e-6)
        known = self.rate(now)
        self._rate = known + _RATE_WEIGHT * (rate - known) if known else rate
        self._measured_s = now

    def rate(self, now: float) -> float:
        """Return the bytes a second that loads get, 0 if that is not known."""
        return self._rate if now < self._measured_s + _RATE_GOOD_S else 0.0


class Tiers(tuple[Tier, ...]):
    """All tiers, nearest first."""

    __slots__ = ()

    def holds(self, key: bytes) -> bool:
        """Return whether any tier holds a unit."""
        return any(tier.holds(key) for tier in self)

    def sources(self, keys: Sequence[bytes]) -> list[int]:
        """Return for each unit, up to the first that none holds, the nearest tier that does."""
        found: list[int] = []
        while len(found) < len(keys):
            rest = keys[len(found) :]
            count = self[0].leading(rest)
            if count:
                found += [0] * count
                continue
            further = next((level for level, tier in enumerate(self) if tier.holds(rest[0])), -1)
            if further < 0:
                return found
            found.append(further)
        return found

    def discard(self, keys: Iterable[bytes]) -> None:
        """Forget units in all tiers."""
        for key in keys:
            for tier in self:
                tier.discard(key)

    def poll(self) -> bool:
        """Let all tiers tell what has ended; return whether anything had."""
        ended = [tier.poll() for tier in self]
        return any(ended)
