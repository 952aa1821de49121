"""Waiting requests in the orders in which `slo` looks at them, kept up to date as they come and go.

Each order is a heap whose entries are not taken out when a request leaves: who meets one that is
out of date drops it. So a step costs the same however many wait.
"""

from __future__ import annotations

import itertools
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from camshaft.contracts.scheduler import RequestView, View

    from ..components import SloSettings
    from .pace import Pace

    Key = tuple[float, bool, float]
    Timed = list[tuple[float, int, "Place"]]

FIRST: Key = (-inf, False, 0.0)
"""Of those that got their turn by age."""


class Place:
    """A stay of a request in the queue.

    Attributes:
        request: Who waits.
        due: When its first token is wanted; infinite if no time is, or if it is too late.
        latest: When it must start for that, by what was known when it came; when it is old else.
        key: Smaller goes first.
        offered: Whether it is in the newest plan, or was passed over there.
        planned: Whether it was to start there.
        ordered: Whether it stands in the order by key.
        asked: Plan from which on it may take a running one's place, again.
    """

    __slots__ = ("asked", "due", "key", "latest", "offered", "ordered", "planned", "request")

    def __init__(self, request: RequestView, due: float, latest: float) -> None:
        self.request = request
        self.due = due
        self.latest = latest
        self.key = FIRST
        self.offered = self.ordered = self.planned = False
        self.asked = 0


class SloQueue:
    """The order to start in; beside it the one in which requests get late, and by arrival.

    Requests go by priority, then by slack, and those that want no time or are too late behind
    those of their priority that can be in time. The slack of a request is its latest start less the
    time that it is: that is the same for all, so the order by latest start is the one by slack.

    Attributes:
        turns: Uids of requests that get their turn by age: they go first from then on.
        short: Whether somebody of the last plan could not start, for want of pages.
    """

    def __init__(self, settings: SloSettings) -> None:
        self.turns: set[int] = set()
        self.short = False
        self._settings = settings
        self._places: dict[int, Place] = {}
        self._by_key: list[tuple[Key, int, Place]] = []
        self._by_latest: Timed = []
        self._by_arrival: Timed = []
        self._offered: list[Place] = []
        self._count = itertools.count()

    def add(self, request: RequestView, pace: Pace) -> None:
        """Put in a request that begins to wait."""
        settings = self._settings
        wanted = settings.ttft_s if request.ttft_slo_s is None else request.ttft_slo_s
        due, latest = inf, request.arrival + settings.aging_s
        if request.preemptions:
            latest = pace.now  # it has begun, and is not turned away any more
        elif wanted is not None:
            due = request.arrival + wanted
            latest = due - pace.first_token_s(request.pending, request.priority)
        place = Place(request, due, latest)
        self._places[request.uid] = place
        self._order(place)
        if due < inf:
            heappush(self._by_latest, (latest, next(self._count), place))
        heappush(self._by_arrival, (request.arrival, next(self._count), place))
        self._tidy()

    def forget(self, request: RequestView) -> None:
        """Drop a request that ended."""
        self._places.pop(request.uid, None)
        self.turns.discard(request.uid)

    def first(self, view: View) -> Place | None:
        """Return whose turn it is, of those that were not offered in this plan."""
        heap = self._by_key
        while heap:
            key, _, place = heap[0]
            if key == place.key:
                if not place.offered and self._waits(view, place):
                    return place
                place.ordered = False
            heappop(heap)
        return None

    def soon(self, view: View) -> Iterator[RequestView]:
        """Yield who waits, those that come first before those that come last, in rough order."""
        for key, _, place in self._by_key:
            if key == place.key and self._waits(view, place):
                yield place.request

    def oldest(self, view: View) -> Place | None:
        """Return who came first, if it has waited long enough to get its turn by age."""
        heap = self._by_arrival
        while heap and not self._waits(view, heap[0][2]):
            heappop(heap)
        if not heap or view.now - heap[0][0] < self._settings.aging_s:
            return None
        return heap[0][2]

    def give_turn(self, place: Place) -> None:
        """Let a request go first."""
        self.turns.add(place.request.uid)
        self._order(place)

    def offer(self, place: Place, *, planned: bool) -> None:
        """Note that a request is dealt with in this plan, and whether it is to start."""
        place.offered, place.planned = True, planned
        self._offered.append(place)

    def settle(self, view: View) -> list[Place]:
        """Return who of the last plan's offers started; the others are back in their places."""
        started = []
        self.short = False
        for place in self._offered:
            place.offered = False
            if self._waits(view, place):
                self.short = self.short or place.planned
                if not place.ordered:
                    self._order(place)
            elif self._places.get(place.request.uid) is place:
                del self._places[place.request.uid]
                started.append(place)
        self._offered = []
        return started

    def late(self, view: View, pace: Pace) -> Iterator[tuple[Place, int]]:
        """Yield those that cannot be in time any more, with the tokens that they have to compute.

        Each once: they are to be dropped or demoted.
        """
        heap = self._by_latest
        while heap and heap[0][0] < view.now:
            place = heappop(heap)[2]
            if place.due == inf or not self._waits(view, place):
                continue
            request = place.request
            left = request.pending - view.cached_tokens(request)
            latest = place.due - pace.first_token_s(left, request.priority)
            if latest < view.now:
                yield place, left
            else:  # it takes less time than was thought when it came
                heappush(heap, (latest, next(self._count), place))

    def demote(self, place: Place, now: float) -> None:
        """Let a late request go behind those that can be in time."""
        place.due, place.latest = inf, now + self._settings.aging_s
        self._order(place)

    def _order(self, place: Place) -> None:
        request = place.request
        behind = place.due == inf and not request.preemptions
        turn = request.uid in self.turns
        place.key = FIRST if turn else (request.priority, behind, place.latest)
        place.ordered = True
        heappush(self._by_key, (place.key, next(self._count), place))

    def _waits(self, view: View, place: Place) -> bool:
        return self._has(place) and place.request in view.waiting

    def _tidy(self) -> None:
        """Drop what is out of date once it is more than the rest."""
        most = 2 * len(self._places) + 64
        if len(self._by_key) > most:
            self._by_key = [one for one in self._by_key if self._has(one[2])]
            heapify(self._by_key)
        for heap in (self._by_latest, self._by_arrival):
            if len(heap) > most:
                heap[:] = [one for one in heap if self._has(one[2])]
                heapify(heap)

    def _has(self, place: Place) -> bool:
        return self._places.get(place.request.uid) is place
