"""The start of a toy, measured in this process."""

from __future__ import annotations

import py_compile
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import startup
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


@pytest.mark.parametrize("has_bytecode", [True, False])
def test_a_run_keeps_what_was_compiled_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, has_bytecode: bool
) -> None:
    seen: dict[str, str] = {}

    def run(words: list[str], *, env: dict[str, str], **_: object) -> Any:
        seen.update(env)
        return SimpleNamespace(stdout="{}")

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(startup, "_has_bytecode", lambda package: has_bytecode)
    monkeypatch.setattr(subprocess, "run", run)
    startup.run_child(TOY, [], "caches")
    assert seen["TRITON_CACHE_DIR"] == "caches/triton_cache_dir"
    of_python = {"PYTHONPYCACHEPREFIX": "caches/pythonpycacheprefix"}
    untouched = {"PYTHONDONTWRITEBYTECODE": "1"}
    found = {name: seen[name] for name in {**of_python, **untouched} if name in seen}
    assert found == (untouched if has_bytecode else of_python)


def test_a_package_has_bytecode_once_it_was_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "slow_to_compile" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not startup._has_bytecode("slow_to_compile")
    py_compile.compile(str(package))
    assert startup._has_bytecode("slow_to_compile")
    assert startup._has_bytecode("no_such_package")


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
