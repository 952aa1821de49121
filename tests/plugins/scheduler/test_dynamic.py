from __future__ import annotations

import pytest
from pydantic import ValidationError

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import DynamicSettings
from camshaft.plugins.scheduler.dynamic import Dynamic
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.scheduler import SchedulerContract


def dynamic(limits: SchedulerLimits, **settings: object) -> Dynamic:
    return Dynamic(DynamicSettings.model_validate(settings), limits)


class TestContract(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return dynamic(limits, min_batch_size=3, max_batch_size=4, max_wait_s=0.001)


def engine_at(clock: VirtualClock) -> Engine:
    def make(limits: SchedulerLimits) -> Dynamic:
        return dynamic(limits, min_batch_size=3, max_batch_size=4, max_wait_s=2.0)

    return model_free_engine(make, clock=clock)


def submit(engine: Engine, *names: str) -> None:
    for name in names:
        engine.submit(make_request(name, [5] * 3, max_tokens=5))


def running(engine: Engine) -> set[str]:
    return {state.request.id for state in engine.view.running}


def test_the_first_request_waits_for_company_and_says_until_when() -> None:
    engine = engine_at(VirtualClock(start=10.0))
    submit(engine, "a")
    engine.step()
    assert (running(engine), engine.wake_at) == (set(), 12.0)


def test_a_batch_starts_when_its_first_request_has_waited_long_enough() -> None:
    clock = VirtualClock(start=10.0)
    engine = engine_at(clock)
    submit(engine, "a")
    clock.advance_to(11.5)
    submit(engine, "b")
    clock.advance_to(12.0)
    engine.step()
    assert running(engine) == {"a", "b"}


def test_a_batch_starts_at_once_when_enough_wait_and_takes_no_more_than_it_may() -> None:
    engine = engine_at(VirtualClock(start=10.0))
    submit(engine, "a", "b", "c", "d", "e")
    engine.step()
    assert running(engine) == {"a", "b", "c", "d"}


def test_who_comes_after_the_start_waits_for_the_end() -> None:
    clock = VirtualClock(start=10.0)
    engine = engine_at(clock)
    submit(engine, "a", "b", "c")
    engine.step()
    submit(engine, "late")
    engine.step()
    assert running(engine) == {"a", "b", "c"}
    clock.advance_to(20.0)
    assert len(run_to_end(engine)["late"].token_ids) == 5


def test_sizes_must_ascend() -> None:
    with pytest.raises(ValidationError, match="`min_batch_size` is larger"):
        DynamicSettings(min_batch_size=5, max_batch_size=4)
