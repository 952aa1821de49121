"""A heap of evictable entries, ordered by an eviction policy and kept up to date lazily."""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from camshaft.contracts.eviction import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from camshaft.contracts.eviction import EvictionPolicy

E = TypeVar("E", bound=Entry)

_SPARE = 64
"""Void records that a queue may hold before it is worth rebuilding."""


class _Place(Generic[E]):
    """Where an entry stands.

    `record` numbers its one valid record in the queue (0: it has none), made under `queued`. That
    key is never above `key`, so the record surfaces in time to be renewed.
    """

    __slots__ = ("due", "entry", "evictable", "key", "queued", "record")

    def __init__(self, entry: E, key: Any) -> None:  # noqa: ANN401 - any type that compares
        self.entry = entry
        self.key = key
        self.queued = key
        self.record = 0
        self.due = inf
        self.evictable = False


_Record: TypeAlias = tuple[Any, int, _Place[E]]


class EvictionHeap(Generic[E]):
    """The evictable entries of one pool. All operations are O(log n), amortised.

    An entry is *known* from its first `insert` until it is popped or discarded. A known entry is
    evictable or, between `remove` and the next `insert`, in use. The policy hears of an entry when
    it becomes known, when it is touched and when it is gone, and of nothing else.

    Entries whose `expires_s` has passed go before all others; that time, like a key, is read when
    an entry is inserted or touched.
    """

    def __init__(self, policy: EvictionPolicy, now: Callable[[], float]) -> None:
        """Make an empty heap.

        Args:
            policy: Orders the entries; nobody else may use it.
            now: The engine's clock, seconds; asked only while entries can expire.
        """
        self.policy = policy
        self._now = now
        self._places: dict[E, _Place[E]] = {}
        # Most policies make keys in rising order: such records stand in a queue, others in a heap.
        self._rising: deque[_Record[E]] = deque()
        self._heap: list[_Record[E]] = []
        self._timed: list[tuple[float, int, _Place[E]]] = []
        self._numbers = itertools.count(1)
        self._evictable = 0

    def __len__(self) -> int:
        """Return how many entries are evictable."""
        return self._evictable

    def __contains__(self, entry: E) -> bool:
        """Return whether `entry` is evictable."""
        place = self._places.get(entry)
        return place is not None and place.evictable

    def __iter__(self) -> Iterator[E]:
        """Iterate over the evictable entries, in no order."""
        return (place.entry for place in self._places.values() if place.evictable)

    def knows(self, entry: E) -> bool:
        """Return whether `entry` is evictable or in use."""
        return entry in self._places

    def insert(self, entry: E) -> None:
        """Make an entry evictable. The policy is told if it is new.

        Raises:
            ValueError: It is evictable already.
        """
        place = self._places.get(entry)
        if place is None:
            self.policy.on_insert(entry)
            place = self._places[entry] = _Place(entry, self.policy.key(entry))
        elif place.evictable:
            raise ValueError("the entry is evictable already")
        place.evictable = True
        self._evictable += 1
        if not place.record:
            self._queue(place)
        if entry.expires_s != place.due:
            self._queue_expiry(place)

    def touch(self, entry: E) -> None:
        """Tell the policy that a known entry served a request; its fields are set.

        Raises:
            KeyError: The entry is not known.
        """
        place = self._places[entry]
        self.policy.on_touch(entry)
        place.key = self.policy.key(entry)
        if place.record and place.key < place.queued:
            self._queue(place)
        if place.evictable and entry.expires_s != place.due:
            self._queue_expiry(place)

    def remove(self, entry: E) -> None:
        """Make an entry not evictable, until it is inserted again.

        Raises:
            KeyError: It is not evictable.
        """
        place = self._places[entry]
        if not place.evictable:
            raise KeyError(entry)
        place.evictable = False
        self._evictable -= 1

    def discard(self, entry: E) -> None:
        """Drop a known entry that lost its content otherwise than by `pop`.

        Raises:
            KeyError: The entry is not known.
        """
        self._drop(self._places[entry])
        self.policy.on_discard(entry)

    def is_due(self, entry: E) -> bool:
        """Whether an entry has expired, and goes for that."""
        return entry.expires_s < inf and entry.expires_s <= self._now()

    def first(self) -> E | None:
        """Return the entry that `pop` would evict, which stays; None when nothing is evictable."""
        place = self._expired()
        if place is not None:
            self._queue_expiry(place)
        else:
            place = self._smallest()
        return None if place is None else place.entry

    def evict(self, entry: E) -> None:
        """Evict the entry that `first` named; time may have passed, and `pop` find another.

        Raises:
            KeyError: The entry is not known.
        """
        self._drop(self._places[entry])
        if entry.expires_s <= self._now():
            self.policy.on_discard(entry)
        else:
            self.policy.on_evict(entry)

    def pop(self) -> E | None:
        """Evict one entry and return it: an expired one, else the one with the smallest key.

        Entries with equal keys go in the order of insertion. None when nothing is evictable.
        """
        place = self._expired() if self._timed else None
        if place is not None:
            self._drop(place)
            self.policy.on_discard(place.entry)
            return place.entry
        place = self._smallest()
        if place is None:
            return None
        self._drop(place)
        self.policy.on_evict(place.entry)
        return place.entry

    def _queue(self, place: _Place[E]) -> None:
        place.record = next(self._numbers)
        place.queued = place.key
        self._push((place.key, place.record, place))
        if len(self._heap) + len(self._rising) > 2 * len(self._places) + _SPARE:
            self._heap = [one for one in self._heap if one[2].record == one[1]]
            heapify(self._heap)
            self._rising = deque(one for one in self._rising if one[2].record == one[1])

    def _push(self, record: _Record[E]) -> None:
        if not self._rising or self._rising[-1] < record:
            self._rising.append(record)
        else:
            heappush(self._heap, record)

    def _queue_expiry(self, place: _Place[E]) -> None:
        place.due = place.entry.expires_s
        if place.due == inf:
            return
        heappush(self._timed, (place.due, next(self._numbers), place))
        if len(self._timed) > 2 * len(self._places) + _SPARE:
            current = {id(one[2]): one for one in self._timed if one[2].due == one[0]}
            self._timed = list(current.values())
            heapify(self._timed)

    def _smallest(self) -> _Place[E] | None:
        heap, rising = self._heap, self._rising
        while heap or rising:
            in_heap = not rising or (bool(heap) and heap[0] < rising[0])
            _, record, place = heap[0] if in_heap else rising[0]
            if place.record == record and place.evictable and not place.queued < place.key:
                return place
            if in_heap:
                heappop(heap)
            else:
                rising.popleft()
            if place.record != record:
                continue
            if not place.evictable:
                place.record = 0
                continue
            # Renewed under the number that it has: among equals the older one stays ahead.
            place.queued = place.key
            self._push((place.key, record, place))
        return None

    def _expired(self) -> _Place[E] | None:
        if not self._timed:
            return None
        timed, now = self._timed, self._now()
        while timed and timed[0][0] <= now:
            due, _, place = heappop(timed)
            if place.due != due:
                continue
            place.due = inf  # an entry that returns queues its time anew
            if place.evictable:
                return place
        return None

    def _drop(self, place: _Place[E]) -> None:
        del self._places[place.entry]
        self._evictable -= place.evictable
        place.evictable = False
        place.record = -1
        place.due = inf
