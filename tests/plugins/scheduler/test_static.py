from __future__ import annotations

import pytest

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import StaticSettings
from camshaft.plugins.scheduler.static import Static
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.scheduler import SchedulerContract


def static(limits: SchedulerLimits, batch_size: int = 2) -> Static:
    return Static(StaticSettings(batch_size=batch_size), limits)


class TestContract(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return static(limits, batch_size=3)


class TestContractOfBatchesLargerThanTheEngine(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return static(limits, batch_size=100)


def running(engine: Engine) -> set[str]:
    return {state.request.id for state in engine.view.running}


def test_nobody_joins_until_the_longest_answer_of_a_batch_has_ended() -> None:
    engine = model_free_engine(static, depth=0)
    for name, outputs in (("short", 1), ("long", 4), ("next", 1)):
        engine.submit(make_request(name, [5] * 3, max_tokens=outputs))
    seen = []
    while engine.has_work:
        engine.step()
        seen.append(running(engine))
    assert seen == [{"long"}, {"long"}, {"long"}, set(), set()]
    assert engine.stats.finished == {"length": 3}


def test_a_batch_starts_with_fewer_if_no_more_wait() -> None:
    engine = model_free_engine(static)
    engine.submit(make_request("alone", [5] * 3))
    engine.step()
    engine.submit(make_request("late", [5] * 3))
    engine.step()
    assert running(engine) == {"alone"}


def test_a_batch_whose_prompts_do_not_fit_a_step_starts_over_several() -> None:
    engine = model_free_engine(static, step_tokens=8, depth=0)
    engine.submit(make_request("a", [5] * 7, max_tokens=9))
    engine.submit(make_request("b", [6] * 7, max_tokens=9))
    engine.submit(make_request("c", [7] * 7, max_tokens=9))
    engine.step()
    engine.step()
    assert running(engine) == {"a", "b"}


@pytest.mark.parametrize("depth", [0, 1])
def test_a_member_that_gave_way_goes_on_before_the_next_batch(depth: int) -> None:
    engine = model_free_engine(static, pages=8, page_tokens=4, depth=depth)
    for name in ("first", "second", "third"):
        engine.submit(make_request(name, [5] * 8, max_tokens=16))
    finished = []
    while engine.has_work:
        finished += [one.id for one in engine.step() if one.finish]
    assert engine.stats.preemptions["no_space"] > 0
    assert finished == ["first", "second", "third"]


def test_an_aborted_member_does_not_hold_the_batch_open() -> None:
    engine = model_free_engine(static)
    engine.submit(make_request("gone", [5] * 3, max_tokens=50))
    engine.step()
    engine.submit(make_request("next", [5] * 3, max_tokens=2))
    engine.abort("gone")
    assert len(run_to_end(engine)["next"].token_ids) == 2


def test_a_module_that_is_taken_into_a_batch_is_planned_once() -> None:
    engine = model_free_engine(static)
    engine.submit(make_request("module", [5] * 3, max_tokens=1))
    engine.submit(make_request("user", [5] * 3, max_tokens=2))
    next(iter(engine.view.waiting)).is_module = True
    assert len(run_to_end(engine)["user"].token_ids) == 2
