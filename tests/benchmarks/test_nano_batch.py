from __future__ import annotations

from typing import Any

import pytest

from benchmarks import nano_batch
from benchmarks.lanes import Bar, bars, beside, draw, spans, window
from benchmarks.nano_batch import CASES, Case, _profiled, _Watch, scheduler_of, use
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import Job
from camshaft.testing.toy import compose_toy


def kernel(stream: int, at: float, takes: float, name: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "kernel",
        "ts": 1000 + at,
        "dur": takes,
        "name": name,
        "args": {"stream": stream},
    }


EVENTS = [
    kernel(20, 5, 10, "decode_kernel"),
    kernel(7, 0, 10, "nvjet_tst_128x256"),
    kernel(20, 15, 4, "nvjet_tst_64x8"),
    kernel(7, 12, 20, "prefill_kernel"),
    kernel(7, 32, 2, "rms_norm"),
    {"ph": "X", "cat": "cpu_op", "ts": 0, "dur": 9999, "name": "aten::mm"},
]
FOUND = [
    Bar(0, 0, 10, "nvjet_tst_128x256", "compute"),
    Bar(1, 5, 15, "decode_kernel", "memory"),
    Bar(0, 12, 32, "prefill_kernel", "compute"),
    Bar(1, 15, 19, "nvjet_tst_64x8", "memory"),
    Bar(0, 32, 34, "rms_norm", "memory"),
]


def test_kernels_are_told_by_stream_and_by_what_limits_them() -> None:
    assert bars(EVENTS, rows=[1900, 100], ridge=170) == FOUND
    assert bars(EVENTS, rows=[1900, 200], ridge=170)[3].bound == "compute"
    assert bars([EVENTS[-1]], rows=[1], ridge=1) == []


def test_time_beside_each_other_counts_once() -> None:
    assert spans([bar for bar in FOUND if bar.lane == 0]) == [(0, 10), (12, 34)]
    assert beside(FOUND) == (10 - 5) + (19 - 12)
    assert beside([bar for bar in FOUND if bar.lane == 0]) == 0


def test_the_view_is_in_the_middle_of_the_second_lane() -> None:
    assert window(FOUND, 0.5) == (8.5, 15.5)
    assert window(FOUND[:1], 1.0) == (0, 10)


def test_the_picture_has_a_bar_for_each_kernel_in_view() -> None:
    picture = draw(FOUND, "a < b", ["many", "few"], (0, 20))
    assert picture.count("<title>") == 4
    assert "a &lt; b" in picture
    assert picture.count("#c8553d") == 2 + 1  # two bars and the legend


WORK = [Job(tuple(range(number, number + 30)), 12) for number in range(8)]


def test_cases_run_one_after_the_other_in_one_engine() -> None:
    composed = compose_toy()
    answers = []
    for case in (Case("continuous"), Case("nano_batch", {"by": "phase", "minimum_tokens": 2}, 40)):
        watch = _Watch(scheduler_of(case, composed.engine))
        use(composed.engine, watch.scheduler)
        answers.append(measure(composed.engine, WORK).answers)
        assert len(watch.prompt_steps) >= 4
    assert answers[0] == answers[1]
    assert composed.engine.stats.nano_steps >= 4


def test_a_step_in_the_middle_is_profiled(tmp_path: Any) -> None:
    composed = compose_toy()
    case = Case("nano_batch", {"by": "phase", "minimum_tokens": 2}, 40)
    use(composed.engine, scheduler_of(case, composed.engine))
    rows = _profiled(composed.engine, WORK, tmp_path / "step.json.gz")
    assert len(rows) == 2
    assert sum(rows) <= 40
    assert (tmp_path / "step.json.gz").stat().st_size > 1000
    assert not composed.engine.has_work


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_settings_that_its_scheduler_takes(name: str) -> None:
    built = scheduler_of(CASES[name], compose_toy().engine)
    assert type(built).__name__.lower() == CASES[name].name.replace("_", "")
    assert nano_batch.TIMELINE in CASES
