"""Continuous batching whose steps are cut into nano-batches that an executor overlaps.

Source: Zhu et al., "NanoFlow", arXiv 2408.12757: attention of decodes waits for memory and products
of many tokens for arithmetic, so parts of a step that are at different operations share a device
better than one step does. What it costs: every part reads the weights. `engine tune` measures which
cut gains on a device, if any does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Plan, Scheduler

from .continuous import Continuous
from .nano_split import by_phase, by_tokens

if TYPE_CHECKING:
    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import (
        Preemption,
        RequestView,
        SchedulerLimits,
        StepReport,
        View,
    )

    from .components import NanoBatchSettings
    from .nano_split import Sizes


class NanoBatch(Scheduler):
    """Plans as `continuous` does; who runs in a step does not depend on how it is cut."""

    cuts_steps = True

    def __init__(self, settings: NanoBatchSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.continuous = Continuous(settings, limits)

    @classmethod
    def supports(cls, settings: object, *, predicts: bool, no_swap: str = "") -> list[str]:
        """See `Continuous.supports`."""
        return Continuous.supports(settings, predicts=predicts, no_swap=no_swap)

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        plan = self.continuous.plan(view)
        plan.nano_batches = self._sizes(plan)
        return plan

    def _sizes(self, plan: Plan) -> Sizes:
        decodes, prompts = len(plan.one_each), [item.tokens for item in plan.items]
        if decodes + sum(prompts) < self.settings.minimum_tokens:
            return ()
        if self.settings.by == "phase":
            return by_phase(decodes, len(prompts))
        return by_tokens(decodes, prompts, self.settings.shares)

    def victim(
        self, view: View, requester: RequestView, need: NoSpace
    ) -> RequestView | Preemption | None:
        """See `Continuous.victim`."""
        return self.continuous.victim(view, requester, need)

    def on_wait(self, request: RequestView) -> None:
        """See `Continuous.on_wait`."""
        self.continuous.on_wait(request)

    def on_step(self, report: StepReport) -> None:
        """See `Scheduler.on_step`."""
        self.continuous.on_step(report)

    def on_finish(self, request: RequestView) -> None:
        """See `Continuous.on_finish`."""
        self.continuous.on_finish(request)
