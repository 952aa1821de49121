"""`engine profile` on a toy: tables, plain data and a trace that other tools read."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli import main
from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.lab import profile as module
from camshaft.plugins.lab.profile import Profile
from camshaft.plugins.lab.rates import Rates
from camshaft.testing.command import CommandContract

TOY = str(Path(__file__).parents[3] / "recipes" / "toy.yaml")
QUICK = ("--warmup", "0", "--steps", "3", "--set", "engine.debug=false")
PARTS = {"norm", "embed", "qkv", "rope", "out", "gate_up", "activation", "down", "head", "sampling"}


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(1e10, 1e10, 1e11)
    monkeypatch.setattr(module, "measured_rates", lambda device, dtype: rates)


def profile(capsys: pytest.CaptureFixture[str], trace: Path, *words: str) -> str:
    assert main(["profile", TOY, *QUICK, "--trace", str(trace), *words]) == 0
    return capsys.readouterr().out


class TestContract(CommandContract):
    name = "profile"
    folder = tempfile.TemporaryDirectory()
    words = (TOY, "--workload", "cpu-single", "--trace", f"{folder.name}/a.json.gz", *QUICK)
    faulty = (
        (TOY, "--workload", "no-such-workload"),
        (TOY, "--workload", "cpu-single", "--trace", "a.json"),
        ("no-such-recipe.yaml", "--workload", "cpu-single"),
        (TOY, "--workload", "cpu-single", "--set", "engine.executor=null"),
    )

    def make(self) -> Command:
        return Profile(Settings())


def test_a_prompt_and_two_decode_steps_are_told_apart_by_part(capsys, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.json.gz"
    report: Any = json.loads(profile(capsys, path, "--workload", "cpu-single", "--json"))
    parts = {one["part"]: one for one in report["parts"]}
    assert {*PARTS, "attention decode", "attention prefill"} <= set(parts)
    assert sum(one["share"] for one in parts.values()) == pytest.approx(1.0, abs=1e-2)
    assert report["steps"] == 3
    assert 0 < report["busy_ms"] <= report["wall_ms"]
    assert all(parts[name]["limit_ms"] > 0 for name in PARTS)
    assert {parts[name]["bound"] for name in PARTS} <= {"memory", "compute"}
    assert parts["other"]["limit_ms"] is None
    with gzip.open(path, "rt") as file:  # as other tools read it
        names = {one.get("name") for one in json.load(file)["traceEvents"]}
    assert {"part: qkv", "part: sampling", "part: attention decode"} <= names


def test_people_get_two_tables_of_the_steps_that_they_asked_for(capsys, tmp_path: Path) -> None:
    words = ("--workload", "cpu-single", "--skip", "5", "--top", "4")
    title, parts, kernels = profile(capsys, tmp_path / "a.json.gz", *words).split("\n\n")
    assert "cpu-single" in title
    assert "steps 6 to 8: " in title
    heads = "part count ms share limit ms of limit bound"
    assert parts.splitlines()[0].split() == heads.split()
    assert "attention decode" in parts
    assert "attention prefill" not in parts
    assert len(kernels.splitlines()) == 5


def test_a_window_behind_the_end_is_refused(capsys, tmp_path: Path) -> None:
    words = ["profile", TOY, *QUICK, "--workload", "cpu-single", "--skip", "500"]
    assert main([*words, "--trace", str(tmp_path / "a.json.gz")]) == 1
    assert "lower --skip" in capsys.readouterr().err


def test_matrices_that_operations_take_are_told_by_their_weights(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("camshaft.plugins.quant.dense.prepack", lambda weight: None)  # as on a GPU
    words = ("--workload", "cpu-single", "--set", "engine.deterministic=false", "--json")
    report = json.loads(profile(capsys, tmp_path / "a.json.gz", *words))
    parts = {one["part"]: one for one in report["parts"]}
    assert {*PARTS, "attention decode"} <= set(parts)
    assert all(parts[name]["limit_ms"] > 0 for name in ("qkv", "out", "gate_up", "down", "head"))
