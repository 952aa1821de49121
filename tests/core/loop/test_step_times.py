"""How long a step is said to have taken, with others in flight."""

from __future__ import annotations

import pytest

from camshaft.contracts.predictor import StepShape, StepTimePredictor
from camshaft.contracts.scheduler import SchedulerLimits, StepReport
from camshaft.executor.null import NullExecutor
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.step import Step
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.timed import LawPredictor, TimedExecutor, shape_of


def law(shape: StepShape) -> float:
    return 0.010 + 0.001 * shape.tokens


class Synchronous(NullExecutor):
    """Computes a step while it is launched, as a CPU does."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(token=7)
        self.clock = clock

    def launch(self, step: Step) -> None:
        super().launch(step)
        self.clock.advance_to(self.clock.now() + law(shape_of(step)))


class Listening(Continuous):
    reports: list[StepReport]

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)


def reports(
    executor: str, depth: int, predictor: StepTimePredictor | None = None
) -> tuple[list[StepReport], Engine]:
    clock = VirtualClock(start=50.0)
    found: list[StepReport] = []

    def listening(limits: SchedulerLimits) -> Listening:
        scheduler = Listening(ContinuousSettings(), limits)
        scheduler.reports = found
        return scheduler

    one = {"sync": Synchronous(clock), "async": TimedExecutor(NullExecutor(7), clock, law)}
    engine = model_free_engine(
        listening, executor=one[executor], clock=clock, depth=depth, predictor=predictor
    )
    engine.submit(make_request("a", range(3, 60), max_tokens=5))
    engine.submit(make_request("b", range(70, 75), max_tokens=9))
    run_to_end(engine)
    return found, engine


@pytest.mark.parametrize("executor", ["sync", "async"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_takes_its_own_time_and_not_that_of_its_neighbours(
    executor: str, depth: int
) -> None:
    found, _ = reports(executor, depth)
    assert [one.shape.tokens for one in found[:2]] == [32, 30]
    for one in found:
        assert one.seconds == pytest.approx(law(one.shape))


@pytest.mark.parametrize(("factor", "error"), [(1.0, 0.0), (1.5, 0.5), (0.5, 0.5)])
def test_the_error_of_predictions_is_counted(factor: float, error: float) -> None:
    _, engine = reports("async", 1, LawPredictor(lambda shape: factor * law(shape)))
    assert engine.stats.prediction_error == pytest.approx(error)


def test_the_first_ids_of_a_request_say_how_long_it_waited_for_its_first_step() -> None:
    clock = VirtualClock(start=50.0)
    engine = model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        executor=Synchronous(clock),
        clock=clock,
        depth=0,
        max_running=1,
    )
    engine.submit(make_request("a", range(3, 13), max_tokens=2))
    engine.submit(make_request("b", range(70, 75), max_tokens=1))
    waited: dict[str, float | None] = {}
    while engine.has_work:
        for output in engine.step():
            waited.setdefault(output.id, output.queued_s)
    # ahead of b are steps of 10 tokens and of one
    assert waited == {"a": 0.0, "b": pytest.approx(0.020 + 0.011)}
