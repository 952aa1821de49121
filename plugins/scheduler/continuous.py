"""Continuous batching with chunked prefill: requests join and leave at every step.

Sources: Yu et al., "Orca", OSDI 2022 (iteration-level scheduling); Agrawal et al., "Sarathi-Serve",
OSDI 2024 (arXiv 2403.02310), section 4: decodes are placed first, and prompts fill what is left of
the token budget in chunks, so that no decode waits for a long prompt. The budget is the recipe's,
or follows from the time that a step may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item, Plan, Scheduler

from .admit import admit
from .bucket import bucket
from .components import ContinuousSettings
from .latency import tokens_within
from .preempt import no_swap_faults, preempt
from .prefetch import Prefetch
from .prefix_order import PrefixOrder
from .prefix_wait import PrefixWait
from .tenants import Tenants
from .tokens import ChunkRule, Room, tokens_for
from .victim import latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import Preemption, RequestView, SchedulerLimits, View


class Continuous(Scheduler):
    """Running requests before waiting ones, and these in the order that a setting names."""

    def __init__(self, settings: ContinuousSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.limits = limits
        chunk = settings.chunk_tokens
        self.rule = ChunkRule(
            most=chunk if isinstance(chunk, int) else limits.step_tokens,
            align=settings.chunk_align,
            whole=chunk == "off",
        )
        self.prefetch = Prefetch(limits.max_running)
        self.prefix_wait = PrefixWait() if settings.share_prefixes else None
        tenants = settings.order == "tenants"
        self.tenants = Tenants(settings.output_weight) if tenants else None
        prefix = settings.order == "prefix"
        window = settings.prefix_window, settings.prefix_age_s
        self.prefix_order = PrefixOrder(*window) if prefix else None

    @classmethod
    def supports(cls, settings: object, *, predicts: bool, no_swap: str = "") -> list[str]:
        """Need a predictor for a limit of time, and a cache with tiers for swap."""
        assert isinstance(settings, ContinuousSettings)
        reasons = no_swap_faults(settings.preemption, no_swap)
        if settings.step_ms != "off" and not predicts:
            reasons.append("`step_ms` needs to know how long a step takes: name a `predictor`")
        return reasons

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        step, items = self.limits.step_tokens, list[Item]()
        decodes, prefills = view.one_pending[:step], view.more_pending
        if self.tenants is not None:
            self.tenants.note(view, decodes)
        most = self._budget(view, decodes, prefills)
        room = Room(most, view.free_slots, most, step)
        for request in prefills:
            tokens = tokens_for(request.computed, request.pending, room, self.rule)
            if tokens:
                items.append(Item(request, tokens))
                room.tokens -= tokens
        if room.tokens and room.slots:
            passes = self._passes(view, prefills)
            items.extend(admit(view, self._order(view), room, self.rule, passes))
        return Plan(items, one_each=decodes, prefetch=self.prefetch.due(view, items))

    def _budget(
        self, view: View, decodes: Sequence[RequestView], prefills: Iterable[RequestView]
    ) -> int:
        """Return how many tokens of prompts this step may hold."""
        most, target = self.limits.step_tokens - len(decodes), self.settings.step_ms
        if target == "off" or not decodes or not most:
            return most
        start = max((one.computed for one in prefills), default=0)
        return tokens_within(view, decodes, start, most, target / 1e3)

    def _order(self, view: View) -> Iterable[RequestView]:
        if self.tenants is not None:
            return self.tenants.order(view)
        if self.prefix_order is not None:
            return self.prefix_order.order(view)
        return view.waiting

    def _passes(self, view: View, prefills: Iterable[RequestView]) -> Callable[[RequestView], bool]:
        """Return what leaves requests for another step: other buckets, and pages that come."""
        bounds, wait = self.settings.length_buckets, self.prefix_wait
        chosen: list[int] = []
        if wait is not None:
            wait.begin(view, prefills)

        def passes(request: RequestView) -> bool:
            own = bucket(request.pending, bounds)
            if chosen and own != chosen[0]:
                return True
            if wait is not None and wait.holds(view, request):
                return True
            chosen.append(own)
            return False

        return passes

    def on_wait(self, request: RequestView) -> None:
        """Put it where the order finds it."""
        if self.tenants is not None:
            self.tenants.on_wait(request)

    def on_finish(self, request: RequestView) -> None:
        """Forget it."""
        self.prefetch.forget(request)
        if self.prefix_wait is not None:
            self.prefix_wait.forget(request)
        if self.tenants is not None:
            self.tenants.on_finish(request)

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> Preemption | None:
        """Preempt the request that came last, maybe the requester; waiting ones never preempt."""
        return preempt(view, latest(view, requester), self.settings.preemption)
