"""The start of a toy, measured in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.startup import Clock, figures, start

TOY = Path(__file__).parents[2] / "recipes" / "toy.yaml"


def test_a_start_is_measured_from_the_beginning_of_the_process_to_the_first_token() -> None:
    report = start(TOY, [], begun=time.time() - 5.0)
    assert 5.0 < report["ready_s"] < report["first_token_s"] < 60.0
    phases = report["phases"]
    names = ("python", "imports", "recipe", "loading weights", "first token", "second token")
    assert set(names) <= set(phases)
    assert phases["python"] == pytest.approx(5.0, abs=0.5)
    until_first = list(phases)[: list(phases).index("second token")]
    assert sum(phases[name] for name in until_first) == pytest.approx(report["first_token_s"])
    assert report["compiled_after_ready"] == []


def test_phases_of_one_name_are_added() -> None:
    clock = Clock(time.time())
    for name in ("a", "b", "a", "b"):
        time.sleep(0.01)
        clock.mark(name)
    assert sorted(clock.phases) == ["a", "b", "python"]
    assert clock.total == pytest.approx(sum(clock.phases.values()))


def test_runs_become_figures_with_their_repeats() -> None:
    def report(first: float, *late: str) -> dict[str, Any]:
        return {
            "device": "card",
            "model": "toy",
            "ready_s": 1.0,
            "first_token_s": first,
            "phases": {"imports": 0.5},
            "slowest_step_ms": 7.0,
            "compiled_after_ready": list(late),
            "loaded_after_ready": [],
        }

    found = figures("run", "cached", "toy.yaml", [report(2.0), report(3.0, "kernel")])
    by_metric = {one.metric: one for one in found}
    assert by_metric["first_token_s"].repeats == [2.0, 3.0]
    assert by_metric["phase: imports"].repeats == [0.5, 0.5]
    assert by_metric["compiled_after_ready"].repeats == [0, 1]
    assert {one.unit for one in found} == {"s", "ms", "kernels"}
