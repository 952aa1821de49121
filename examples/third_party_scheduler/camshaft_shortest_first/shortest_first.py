"""Shortest prompt first: the mean wait falls, and patience keeps long prompts from starving.

Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly
3 (1956): serving short jobs first minimises the mean time to completion. Departure: the length of
the prompt stands for the length of the job, since nobody knows how many tokens will be generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item, Plan, Scheduler

if TYPE_CHECKING:
    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import RequestView, SchedulerLimits, View

    from .components import ShortestFirstSettings


class ShortestFirst(Scheduler):
    """Decodes run first, then prompts in order of their length."""

    def __init__(self, settings: ShortestFirstSettings, limits: SchedulerLimits) -> None:
        self._patience_s = settings.patience_s
        self._limits = limits

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        # one token each, so that nobody who is being answered waits for a prompt
        decodes = view.one_pending[: self._limits.step_tokens]
        waiting = [request for request in view.waiting if request.ready]
        admitted = sorted(waiting, key=lambda one: self._urgency(one, view.now))[: view.free_slots]
        items: list[Item] = []
        budget = self._limits.step_tokens - len(decodes)
        for request in [*sorted(view.more_pending, key=_length), *admitted]:
            tokens = min(request.pending - _cached(view, request), budget)
            if tokens == 0:
                break
            items.append(Item(request, tokens))
            budget -= tokens
        return Plan(items, one_each=decodes)

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        """Preempt the longest prompt; the shortest is always safe, so somebody finishes."""
        if all(request.uid != requester.uid for request in view.running):
            return None  # it waits anyway, and takes nothing from those who run
        return max(view.running, key=_length) if len(view.running) > 1 else None

    def _urgency(self, request: RequestView, now: float) -> tuple[float, ...]:
        if now - request.arrival >= self._patience_s:
            return (0, request.arrival, request.uid)
        return (1, *_length(request))


def _length(request: RequestView) -> tuple[float, ...]:
    return (request.prompt_tokens, request.arrival, request.uid)


def _cached(view: View, request: RequestView) -> int:
    """Return prompt tokens that need no computing; only a request that waits can have any."""
    return 0 if request.computed else view.cached_tokens(request)
