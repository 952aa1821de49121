"""Who waits, who runs; and the read-only view of it that schedulers get."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from ..contracts.predictor import StepShape
from .singles import Singles
from .state import RequestState, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Sequence

    from ..contracts.cache import KVManager, PoolUsage, SwapCost
    from ..contracts.predictor import StepTimePredictor
    from ..contracts.scheduler import RequestView
    from .clock import Clock
    from .slots import Slots
    from .table import SlotTable


class Waiting:
    """The waiting queue: preempted requests before new ones, each part by arrival."""

    def __init__(self) -> None:
        self._new: OrderedDict[int, RequestState] = OrderedDict()  # takes out anywhere at once
        self._again: dict[int, RequestState] = {}

    def __len__(self) -> int:
        return len(self._again) + len(self._new)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._again.values()
        yield from self._new.values()

    def __contains__(self, state: object) -> bool:
        assert isinstance(state, RequestState)
        return state.uid in self._new or state.uid in self._again

    def append(self, state: RequestState) -> None:
        """Add a new request."""
        self._new[state.uid] = state

    def put_back(self, state: RequestState) -> None:
        """Add a preempted request before the new ones, by arrival among the preempted."""
        again = [*self._again.values(), state]
        again.sort(key=lambda one: (one.arrival, one.uid))
        self._again = {one.uid: one for one in again}

    def remove(self, state: RequestState) -> None:
        """Take a request out."""
        del (self._again if state.uid in self._again else self._new)[state.uid]


class EngineView:
    """The `View` that schedulers get. Cheap to ask: nothing is copied.

    Attributes:
        admitted: Requests with a slot, by uid, in order of admission.
        turn: Counts the engine's plans.
    """

    def __init__(
        self,
        clock: Clock,
        cache: KVManager,
        slots: Slots,
        table: SlotTable,
        predictor: StepTimePredictor | None,
        page_tokens: int,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._slots = slots
        self._table = table
        self._predictor = predictor
        self._page_tokens = page_tokens
        self._cached: dict[int, tuple[int, int, int]] = {}
        self.waiting = Waiting()
        self.admitted: dict[int, RequestState] = {}
        self.steps_in_flight = 0
        self.turn = 0
        self._singles = Singles([], table.order, table.order, 0)

    @property
    def running(self) -> Collection[RequestState]:
        """Requests with a slot, in order of admission."""
        return self.admitted.values()

    @property
    def one_pending(self) -> Singles:
        """Running requests with one pending token. See `View.one_pending`."""
        table, before = self._table, self._singles
        slots = table.order[table.pending[table.order] == 1]
        uids = table.uid[slots]
        # mostly these are the requests of the last step
        same = len(uids) == len(before) and not np.count_nonzero(uids != before.uids)
        states = before.states if same else table.at(slots)
        self._singles = Singles(states, slots, uids, self.turn)
        return self._singles

    @property
    def more_pending(self) -> list[RequestState]:
        """Running requests with more than one pending token. See `View.more_pending`."""
        table = self._table
        return table.at(table.order[table.pending[table.order] > 1])

    @property
    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock.now()

    @property
    def free_slots(self) -> int:
        """Slots that can be taken in this step."""
        return self._slots.free

    @property
    def has_tiers(self) -> bool:
        """Whether the cache can bring pages nearer."""
        return self._cache.has_tiers

    def usage(self) -> tuple[PoolUsage, ...]:
        """Return the pages of each pool."""
        return self._cache.usage()

    def cached_tokens(self, request: RequestView) -> int:
        """Return prompt tokens that the cache would serve now."""
        assert isinstance(request, RequestState)
        if request.status is not Status.WAITING:
            return 0
        epoch, length = self._cache.epoch, len(request.tokens)
        memo = self._cached.get(request.uid)
        if memo is None or memo[:2] != (epoch, length):
            hit = self._cache.match(request.prefix, min(length - 1, request.unread))
            memo = (epoch, length, hit.ready)
            self._cached[request.uid] = memo
        return memo[2]

    def next_page(self, request: RequestView) -> Hashable | None:
        """Name the page that a request would compute next. See `View.next_page`."""
        assert isinstance(request, RequestState)
        waiting = request.status is Status.WAITING
        start = self.cached_tokens(request) if waiting else request.computed
        start -= start % self._page_tokens
        page = tuple(request.tokens[start : start + self._page_tokens])
        if len(page) < self._page_tokens:
            return None
        prefix, scope = request.prefix, request.prefix.scope
        parts = prefix.salt, prefix.adapter, scope.namespace, scope.version, prefix.runs
        return (*parts, start, page)

    def shape(self, one_each: Sequence[RequestView]) -> StepShape:
        """Return what a step with one token of each would hold. See `View.shape`."""
        count = len(one_each)
        if isinstance(one_each, Singles):
            context = int(self._table.computed[one_each.slots].sum())
        else:
            context = sum(one.computed for one in one_each)
        return StepShape(count, count, count, context + count, count)

    def predict(self, shape: StepShape) -> float:
        """Return the expected seconds of a step, 0 without a predictor."""
        return self._predictor.predict(shape) if self._predictor is not None else 0.0

    def swap_cost(self, request: RequestView) -> SwapCost | None:
        """Return what it takes to preempt a request by swap. See `View.swap_cost`."""
        assert isinstance(request, RequestState)
        if request.status is not Status.RUNNING:
            return None
        return self._cache.swap_cost(request.uid, request.computed)

    def forget(self, state: RequestState) -> None:
        """Drop what was memoised for a request."""
        self._cached.pop(state.uid, None)
