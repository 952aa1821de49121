"""Requests planned as a whole, through `Plan.one_each`, against the same ones item by item."""

from __future__ import annotations

import random

import numpy as np
import pytest
from msgspec import structs

from camshaft.contracts.cache import NoSpace
from camshaft.contracts.scheduler import (
    Item,
    Plan,
    Preemption,
    RequestView,
    Scheduler,
    SchedulerLimits,
    View,
)
from camshaft.executor.null import NullExecutor
from camshaft.loop.commit import PlanError
from camshaft.loop.engine import Engine
from camshaft.step import Step
from camshaft.testing.engines import make_request, model_free_engine, run_to_end


class AsAWhole(Scheduler):
    """Decodes, then prompts, then whoever waits."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits

    def plan(self, view: View) -> Plan:
        plan = Plan(one_each=self.decodes(view)[: self.limits.step_tokens])
        budget, slots = self.limits.step_tokens - len(plan.one_each), view.free_slots
        for request in [*view.more_pending, *list(view.waiting)[:slots]]:
            tokens = min(request.pending, budget)
            if tokens and request.ready:
                plan.items.append(Item(request, tokens))
                budget -= tokens
        return plan

    def decodes(self, view: View):
        return view.one_pending

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        running = list(view.running)
        waits = all(one.uid != requester.uid for one in running)
        return None if waits or len(running) < 2 else running[-1]


class OneByOne(AsAWhole):
    def decodes(self, view: View):
        return [one for one in view.running if one.ready and one.pending == 1]


class Recorder(NullExecutor):
    """Keeps the steps, and answers with other tokens each time: also with stop ids and NaN."""

    def __init__(self) -> None:
        super().__init__(pack=False)
        self.seen: list[bytes] = []

    def launch(self, step: Step) -> None:
        self.seen.append(step.pack().tobytes())
        super().launch(step)
        output, chance = self._steps[step.id], np.random.default_rng(step.id)
        output.tokens[:, 0] = chance.integers(0, 60, len(output.counts))
        output.finite = chance.random(len(output.counts)) > 0.005


def told(engine: Engine) -> list[str]:
    """Do a turn; return what it brought but for times, which are real."""
    return sorted(repr(structs.replace(one, queued_s=None)) for one in engine.step())


def play(scheduler: type[Scheduler], seed: int) -> tuple[list[bytes], list[str], dict[str, int]]:
    """Run random requests, with aborts, on few pages."""
    chance, depth, executor = random.Random(seed), seed % 3, Recorder()
    engine = model_free_engine(
        scheduler, pages=24, step_tokens=24, depth=depth, late_steps=depth, executor=executor
    )
    published: list[str] = []
    for number in range(30):
        prompt = [chance.randrange(9) for _ in range(chance.randint(1, 30))]
        request = make_request(f"r{number}", prompt, chance.randint(1, 30), arrival=1.0 + number)
        request.needs_host_tokens = chance.random() < 0.1
        engine.submit(request)
        for _ in range(chance.randint(0, 4)):
            published += told(engine)
        if chance.random() < 0.1:
            engine.abort(f"r{chance.randint(0, number)}")
    while engine.has_work:
        published += told(engine)
    return executor.seen, published, dict(engine.stats.preemptions)


@pytest.mark.parametrize("seed", range(6))
def test_planned_as_a_whole_or_one_by_one_the_steps_are_the_same(seed: int) -> None:
    steps, outputs, preemptions = play(AsAWhole, seed)
    assert (steps, outputs, preemptions) == play(OneByOne, seed)
    assert preemptions["no_space"] > 0


def decoding(scheduler: type[Scheduler], count: int = 3) -> Engine:
    """Return an engine in which requests decode; with nothing in flight between steps."""
    engine = model_free_engine(scheduler, depth=0)
    for number in range(count):
        engine.submit(make_request(f"r{number}", [5] * 3, max_tokens=20))
    engine.step()
    return engine


class Remembering(AsAWhole):
    """Plans what it saw one step before."""

    seen: object = ()

    def decodes(self, view: View):
        before, self.seen = self.seen or view.one_pending, view.one_pending
        return before


def test_what_an_earlier_view_said_is_checked_and_still_holds() -> None:
    engine = decoding(Remembering)
    for _ in range(3):
        engine.step()
    assert engine.stats.step_tokens == 18


def test_what_an_earlier_view_said_is_refused_when_it_holds_no_more() -> None:
    engine = decoding(Remembering)
    engine.step()
    engine.abort("r1")
    with pytest.raises(PlanError, match="Remembering: request 2 is not ready"):
        engine.step()


class Doubling(AsAWhole):
    """Plans everybody twice."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        plan.items += [Item(one, 1) for one in plan.one_each[:1]]
        return plan


def test_nobody_is_planned_as_a_whole_and_in_an_item() -> None:
    engine = decoding(Doubling)
    with pytest.raises(PlanError, match="a request is planned twice"):
        engine.step()


class Unbounded(AsAWhole):
    def plan(self, view: View) -> Plan:
        return Plan(one_each=view.one_pending) if view.one_pending else super().plan(view)


def test_requests_planned_as_a_whole_count_towards_the_limit() -> None:
    engine = decoding(Unbounded, count=1)
    engine.parts.scheduler.limits = SchedulerLimits(9, 8)  # type: ignore[attr-defined]
    engine.committer.limits = SchedulerLimits(0, 8)
    with pytest.raises(PlanError, match="1 tokens are planned, the limit is 0"):
        engine.step()


class Preempting(AsAWhole):
    """Preempts the first request in the third step, which it also plans."""

    steps = 0

    def plan(self, view: View) -> Plan:
        plan, self.steps = super().plan(view), self.steps + 1
        if self.steps == 3:
            plan.preempt = [Preemption(plan.one_each[0])]
        return plan


def test_a_request_preempted_by_its_own_plan_is_not_in_the_step() -> None:
    engine = decoding(Preempting)
    assert [len(engine.step()) for _ in range(3)] == [3, 2, 3]
    assert {len(one.token_ids) for one in run_to_end(engine).values()} == {16, 17}


def test_the_view_tells_decodes_from_prompts() -> None:
    engine = model_free_engine(AsAWhole, step_tokens=8, depth=0)
    for number, length in enumerate((3, 20)):
        engine.submit(make_request(f"r{number}", [5] * length))
    engine.step()
    assert [one.request.id for one in engine.view.one_pending] == ["r0"]
    assert [one.request.id for one in engine.view.more_pending] == ["r1"]
    assert [one.uid for one in engine.view.one_pending[1:]] == []
