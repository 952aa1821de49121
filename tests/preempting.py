"""A scheduler around another one that preempts whomever it likes, in whichever way."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Plan, Preemption, PreemptMode, Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import RequestView, StepReport, View

BOTH: tuple[PreemptMode, ...] = ("swap", "recompute")


class Preempting(Scheduler):
    """Another one that preempts somebody in every fourth plan, and says how whenever it does."""

    def __init__(self, inner: Scheduler, modes: Sequence[PreemptMode], seed: int = 0) -> None:
        super().__init__()
        self.inner = inner
        self.modes = modes
        self.chance = random.Random(seed)

    def _preemption(self, request: RequestView, cause: str) -> Preemption:
        return Preemption(request, self.chance.choice(self.modes), cause)

    def plan(self, view: View) -> Plan:
        plan = self.inner.plan(view)
        if len(view.running) > 1 and self.chance.random() < 0.25:
            one = self.chance.choice(list(view.running))
            plan.preempt = [self._preemption(one, "chance")]
        return plan

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> Preemption | None:
        chosen = self.inner.victim(view, requester, need)
        if isinstance(chosen, Preemption):
            chosen = chosen.request
        return None if chosen is None else self._preemption(chosen, "no_space")

    def on_wait(self, request: RequestView) -> None:
        self.inner.on_wait(request)

    def on_step(self, report: StepReport) -> None:
        self.inner.on_step(report)

    def on_finish(self, request: RequestView) -> None:
        self.inner.on_finish(request)
