"""Load, virtual time and verdicts of the benchmark of schedulers."""

from __future__ import annotations

import itertools
import statistics

import pytest

from benchmarks.arrivals import ANSWER, PROMPT, Order, draw, quantile
from benchmarks.goodput import Drive, Served, Summary
from benchmarks.lines import draw as picture
from benchmarks.schedulers import CASES, Bar, Bench, Load
from benchmarks.step_times import StepModel, fit, timed_executor
from camshaft.contracts.predictor import StepShape
from camshaft.loop.clock import VirtualClock
from camshaft.testing.engines import model_free_engine
from tests.plugins.scheduler.configurations import scheduler

MODEL = StepModel(step=0.01, token=0.001, context=0.0, row=0.0)


def test_lengths_have_the_quantiles_of_the_trace() -> None:
    assert (quantile(PROMPT, 0.5), quantile(PROMPT, 0.0), quantile(ANSWER, 1.0)) == (1020, 2, 1000)
    orders = draw("poisson", 1.0, 4000, (1.0, 1.0), seed=0)
    assert statistics.median(one.prompt for one in orders) == pytest.approx(1020, rel=0.05)
    assert statistics.mean(one.is_high for one in orders) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(("kind", "spread"), [("poisson", 1.0), ("bursty", 2.0), ("trace", 1.1)])
def test_gaps_have_their_mean_and_spread(kind: str, spread: float) -> None:
    due = [one.due_s for one in draw(kind, 4.0, 8000, (12.0, 2.0), seed=1)]
    gaps = [later - one for one, later in itertools.pairwise(due)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(spread, rel=0.15)


def test_the_same_requests_come_at_every_rate() -> None:
    slow, fast = (draw("poisson", rate, 50, (12.0, 2.0), seed=2) for rate in (1.0, 10.0))
    assert [one.prompt for one in slow] == [one.prompt for one in fast]
    assert slow[-1].due_s == pytest.approx(10 * fast[-1].due_s)


def test_the_formula_of_steps_is_found_again() -> None:
    shapes = [StepShape(n, n * t, 0, n * c, n) for n in (1, 4, 9) for t in (1, 7) for c in (9, 60)]
    wanted = StepModel(0.02, 0.001, 0.0001, 0.0)
    found = fit([(shape, wanted.seconds(shape)) for shape in shapes])
    assert found.step == pytest.approx(0.02)
    assert found.context == pytest.approx(0.0001)
    assert found.token + found.row == pytest.approx(0.001, rel=0.05)


def drive(clock: VirtualClock, *orders: tuple[float, int, int]) -> list[Served]:
    engine = model_free_engine(
        lambda limits: scheduler("continuous", limits),
        clock=clock,
        executor=timed_executor(clock, MODEL),
        pages=200,
        depth=0,
    )
    made = [Order(due, prompt, answer, is_high=False) for due, prompt, answer in orders]
    return Drive(engine, 1000).run(made)


def test_steps_take_as_long_as_the_formula_says() -> None:
    one, late = drive(VirtualClock(start=7.0), (0.0, 10, 3), (5.0, 1, 2))
    assert one.stamps == pytest.approx([0.02, 0.031, 0.042])
    assert late.stamps == pytest.approx([5.011, 5.022])
    assert (one.finish, one.in_time) == ("length", True)


def test_a_step_that_is_launched_early_ends_after_the_one_before_it() -> None:
    clock = VirtualClock()
    engine = model_free_engine(
        lambda limits: scheduler("continuous", limits),
        clock=clock,
        executor=timed_executor(clock, MODEL),
        depth=1,
    )
    (one,) = Drive(engine, 1000).run([Order(0.0, 10, 3, is_high=False)])
    assert one.stamps == pytest.approx([0.02, 0.031, 0.042])


@pytest.mark.parametrize(
    ("stamps", "in_time"),
    [
        ([2.9, 2.99], True),
        ([3.1, 3.2], False),
        ([2.0, 2.01, 2.3], False),
        ([2.0, 2.15, 2.19], True),
    ],
)
def test_in_time_means_the_first_token_and_the_mean_of_the_others(
    stamps: list[float], in_time: bool
) -> None:
    one = Served(Order(1.0, 5, len(stamps), is_high=True), stamps, "length")
    assert one.in_time == in_time
    one.finish = "refused"
    assert not one.in_time


def test_a_summary_counts_tokens_of_those_that_ended() -> None:
    served = drive(VirtualClock(), (0.0, 10, 3), (0.0, 4, 3))
    summary = Summary.of(served)
    assert (summary.in_time, summary.refused) == (1.0, 0.0)
    assert summary.out_tok_s == pytest.approx(6 / served[0].stamps[-1])


def test_a_case_runs_in_virtual_time_and_has_a_goodput() -> None:
    bench = Bench(Load(40, (40.0, 20.0), (0,)), StepModel(0.02, 0.002, 0.0, 0.0))
    assert bench.in_time("continuous", "poisson", 0.5) == 1.0
    assert bench.in_time("continuous", "poisson", 200.0) < 0.9
    assert 0.5 <= bench.goodput("continuous", "poisson", [0.5, 200.0]) < 200.0
    assert {"static", "dynamic", "continuous"} <= set(CASES)


def test_a_bar_says_whether_it_holds() -> None:
    assert Bar("x", "times", 3.2, 3.0).told() == "x: 3.2 times, at least 3: holds"
    assert Bar("x", "times", 0.6, 0.5, False).told() == "x: 0.6 times, at most 0.5: MISSED"


def test_the_picture_names_every_line() -> None:
    lines = {"static": [(0.5, 1.0), (1.0, 0.4)], "slo & co": [(0.5, 1.0), (1.0, 0.9)]}
    drawn = picture({"poisson": lines, "bursty": lines}, "in time", 0.9)
    assert drawn.count("<polyline") == 4
    assert "slo &amp; co" in drawn
