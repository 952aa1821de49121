"""Continuous batching with chunked prefill: requests join and leave at every step.

Sources: Yu et al., "Orca", OSDI 2022 (iteration-level scheduling); Agrawal et al., "Sarathi-Serve",
OSDI 2024 (arXiv 2403.02310), section 4: decodes are placed first, and prompts fill what is left of
the token budget in chunks, so that no decode waits for a long prompt. Departure: the chunk is what
is left of the budget unless a setting caps it, where the paper derives it from a latency target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item, Plan, Scheduler

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import RequestView, SchedulerLimits, View

    from .components import ContinuousSettings


class Continuous(Scheduler):
    """First come, first served; running requests before waiting ones."""

    def __init__(self, settings: ContinuousSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.limits = limits
        self.whole_prompts = settings.chunk_tokens == "off"
        chunk = settings.chunk_tokens
        self.chunk_tokens = chunk if isinstance(chunk, int) else limits.step_tokens
        self._put_off: dict[int, Hashable] = {}

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        items: list[Item] = []
        decodes, prefills = view.one_pending[: self.limits.step_tokens], view.more_pending
        most = budget = self.limits.step_tokens - len(decodes)
        for request in prefills:
            tokens = self._chunk(request.computed, request.pending, budget, most)
            if tokens:
                items.append(Item(request, tokens))
                budget -= tokens
        if budget and view.free_slots:
            coming = {view.next_page(request) for request in prefills}
            items.extend(self._admit(view, budget, most, coming))
        return Plan(items, one_each=decodes)

    def _chunk(self, start: int, left: int, budget: int, most: int) -> int:
        """Return how many tokens of a prompt to compute.

        Args:
            start: Tokens before them.
            left: Tokens that are still to be computed, at least 1.
            budget: What is left of the step.
            most: What decodes left of it, for all prompts.

        Returns:
            0 if too little is left for a chunk that ends where it should.
        """
        tokens, align = min(left, self.chunk_tokens, budget), self.settings.chunk_align
        if tokens == left or min(left, self.chunk_tokens, most) < 4 * align:
            return tokens
        return max(0, tokens - (start + tokens) % align)  # never 0 for the first prompt of a step

    def _admit(
        self, view: View, budget: int, most: int, coming: set[Hashable | None]
    ) -> Iterable[Item]:
        """Yield waiting requests in order, until one does not fit: nobody is overtaken for ever."""
        slots = view.free_slots
        for request in view.waiting:
            if not budget or not slots:
                return
            if not request.ready or self._puts_off(view, request, coming):
                continue
            cached = view.cached_tokens(request)
            left = request.pending - cached
            if self.whole_prompts and left > budget and budget < self.limits.step_tokens:
                return
            tokens = self._chunk(cached, left, budget, most)
            if not tokens:
                return
            yield Item(request, tokens)
            budget -= tokens
            slots -= 1

    def _puts_off(self, view: View, request: RequestView, coming: set[Hashable | None]) -> bool:
        """Whether another request of this step computes the page that `request` needs next.

        Once for each page: a cache that does not share it must not hold the request up.
        """
        if not self.settings.share_prefixes:
            return False
        page = view.next_page(request)
        if page is None or page not in coming:
            coming.add(page)
            return False
        if self._put_off.get(request.uid) == page:
            return False
        self._put_off[request.uid] = page
        return True

    def on_finish(self, request: RequestView) -> None:
        """Forget it."""
        self._put_off.pop(request.uid, None)

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        """Preempt the request that came last, maybe the requester; waiting ones never preempt."""
        running = [one for one in view.running if one.uid != requester.uid]
        if all(one.uid != requester.uid for one in view.running):
            return None  # it is waiting, and has nothing that it could lose
        last = max([*running, requester], key=lambda one: (one.arrival, one.uid))
        return last if running else None
