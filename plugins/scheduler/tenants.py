"""Fairness across tenants: the virtual token counter.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (arXiv 2401.00588),
algorithm 2: the tenant that was served least goes next, a token of output counts more than one of
a prompt, and a tenant that comes back starts no lower than those who wait. Departures: tokens that
the cache serves are free, and so is what a preemption makes the engine compute again; outputs count
when they are planned.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from camshaft.contracts.scheduler import RequestView, View

    Lane = OrderedDict[int, RequestView]

_tenant = attrgetter("tenant")

KEPT = 1024
"""Counters that are kept before those of tenants who wait for nothing are looked through."""


class Tenants:
    """Waiting requests in a lane for each tenant, and what each tenant was served.

    Served tokens only rise. So the heap of lanes may hold what they were earlier: an entry that is
    too low is found when it comes first.
    """

    def __init__(self, output_weight: float) -> None:
        self._weight = output_weight
        self._served: dict[str, float] = {}
        self._lanes: dict[str, Lane] = {}
        self._heap: list[tuple[float, str]] = []
        self._listed: set[str] = set()  # who has an entry in the heap, or had one until `order`
        self._out: list[str] = []  # whose entries `order` took
        self._offered: list[tuple[RequestView, float]] = []
        self._floor = 0.0
        self._most_kept = KEPT

    def on_wait(self, request: RequestView) -> None:
        """Put a request into its lane; a tenant without one catches up with those who wait."""
        tenant = request.tenant
        if tenant not in self._lanes:
            self._put_back()
            lowest = self._lowest()
            floor = self._floor if lowest is None else lowest
            self._served[tenant] = max(self._served.get(tenant, 0.0), floor)
            self._lanes[tenant] = OrderedDict()
            self._list(tenant)
        lane = self._lanes[tenant]
        lane[request.uid] = request
        if request.preemptions:
            lane.move_to_end(request.uid, last=False)

    def on_finish(self, request: RequestView) -> None:
        """Take a request out that ended before it was seen to run."""
        if request.uid in self._lanes.get(request.tenant, ()):
            if request.computed:
                self._served[request.tenant] += request.prompt_tokens + self._weight
            self._leave(request)

    def note(self, view: View, decodes: Iterable[RequestView]) -> None:
        """Count the prompts that were offered before and run now, and a token of each decode."""
        self._put_back()
        for request, cost in self._offered:
            in_lane = request.uid in self._lanes.get(request.tenant, ())
            if in_lane and request not in view.waiting:
                self._served[request.tenant] += cost
                self._leave(request)
        self._offered = []
        for tenant, count in Counter(map(_tenant, decodes)).items():
            self._served[tenant] = self._served.get(tenant, 0.0) + count * self._weight

    def order(self, view: View) -> Iterator[RequestView]:
        """Yield waiting requests, each of the tenant that would be served least by then."""
        heap: list[tuple[float, str]] = []  # as if what was yielded were served
        lanes: dict[str, Iterator[RequestView]] = {}
        while True:
            lowest = self._lowest()
            if lowest is not None and (not heap or lowest <= heap[0][0]):
                _, tenant = heappop(self._heap)
                self._out.append(tenant)
                lanes[tenant] = iter(self._lanes[tenant].values())
                heappush(heap, (lowest, tenant))
                continue
            if not heap:
                return
            served, tenant = heap[0]
            request = next(lanes[tenant], None)
            if request is None:
                heappop(heap)
                continue
            cost = 0.0
            if not request.preemptions:  # the last step of a prompt brings an output
                cost = request.pending - view.cached_tokens(request) + self._weight
            heapreplace(heap, (served + cost, tenant))
            self._offered.append((request, cost))
            yield request

    def _leave(self, request: RequestView) -> None:
        tenant = request.tenant
        lane = self._lanes[tenant]
        del lane[request.uid]
        if not lane:
            del self._lanes[tenant]
            self._floor = self._served[tenant]
            if len(self._served) > self._most_kept:
                self._forget()

    def _forget(self) -> None:
        """Drop counters that would be lifted anyway when their tenants come back."""
        self._put_back()
        lowest = self._lowest()
        floor = self._floor if lowest is None else lowest
        self._served = {
            tenant: served
            for tenant, served in self._served.items()
            if served > floor or tenant in self._lanes
        }
        self._most_kept = KEPT + 2 * len(self._served)

    def _list(self, tenant: str) -> None:
        if tenant not in self._listed:
            self._listed.add(tenant)
            heappush(self._heap, (self._served[tenant], tenant))

    def _put_back(self) -> None:
        """Return to the heap what `order` took."""
        out, self._out = self._out, []
        self._listed.difference_update(out)
        for tenant in out:
            if tenant in self._lanes:
                self._list(tenant)

    def _lowest(self) -> float | None:
        """Return the fewest served tokens of tenants in the heap, which is first in it then."""
        heap = self._heap
        while heap:
            served, tenant = heap[0]
            if tenant not in self._lanes:
                heappop(heap)
                self._listed.discard(tenant)
            elif served < self._served[tenant]:
                heapreplace(heap, (self._served[tenant], tenant))
            else:
                return served
        return None
