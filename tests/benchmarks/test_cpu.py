"""Bars and the command of the benchmark beside peers on a processor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import cpu, results
from benchmarks.cpu import chosen, parse, public_command
from benchmarks.cpu_bars import BARS, Found, draw, rows
from camshaft.errors import CamshaftError
from tests.benchmarks.test_peers import fake

FOUND: Found = {
    ("cpu-single", "out_tok_s"): {
        ("camshaft", "quickstart"): [150.0, 180.0, 170.0],
        ("llama.cpp", "off"): [140.0, 139.0, 141.0],
        ("llama.cpp", "on"): [95.0],
        ("openvino", "int8"): [44.0],
    },
    ("cpu-prompt512", "ttft_ms"): {
        ("camshaft", "quickstart"): [120.0],
        ("llama.cpp", "off"): [630.0],
        ("openvino", "int8"): [130.0],
        ("openvino", "gguf"): [270.0],
    },
    ("cpu-start", "pss_mb"): {("camshaft", "quickstart"): [700.0], ("openvino", "int8"): [600.0]},
    ("cpu-single", "foreign_share"): {("camshaft", "quickstart"): [0.01, 0.02, 0.0]},
}


def test_ours_is_compared_with_the_best_configuration_of_the_best_peer() -> None:
    single, prompt, memory = rows(FOUND, "camshaft")
    assert single.best["llama.cpp"] == (140.0, "off")
    assert single.ratio == pytest.approx(170 / 140)
    assert single.holds is True
    assert prompt.ratio == pytest.approx(120 / 130)
    assert prompt.holds is False
    assert (memory.bar.metric, memory.holds) == ("pss_mb", True)


def test_a_ratio_needs_a_peer_and_a_figure_of_its_own_none() -> None:
    single, start = BARS[0], BARS[5]
    assert single.holds(500.0, None) is None
    assert start.holds(5.9, None) is True
    assert start.holds(6.1, 9.0) is False


def test_the_table_says_what_holds() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(draw(rows(FOUND, "camshaft"), ["camshaft", "llama.cpp", "openvino"]))
    lines = {
        line.split("│")[1].strip(): line for line in shown.get().splitlines() if "cpu-" in line
    }
    assert "1.21" in lines["cpu-single"]
    assert "holds" in lines["cpu-single"]
    assert "MISSED" in lines["cpu-prompt512"]
    assert "130 reached" in lines["cpu-prompt512"]


def test_a_peer_that_is_missing_is_an_error_unless_it_is_left_out() -> None:
    with pytest.raises(CamshaftError, match="the interpreter that has llama.cpp and openvino"):
        chosen(parse([]))
    alone = chosen(parse(["--without", "llama.cpp", "--without", "openvino"]))
    assert [one.recipe for one in alone] == ["recipes/quickstart.yaml"]


def test_the_recorded_command_has_no_paths_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["cpu.py", "--peers", "/home/me/bin/python", "--models", "my models", "--quick"]
    monkeypatch.setattr(sys, "argv", words)
    assert public_command() == "python -m benchmarks.cpu --peers PYTHON --models FOLDER --quick"


def test_a_run_records_every_engine_and_tells_a_missed_bar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [fake("ours", "camshaft", seconds_a_token=0.01), fake("theirs", "openvino")]
    monkeypatch.setattr(cpu, "chosen", lambda _: engines)
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["cpu.py", "--busy", "--workloads", "cpu-single"])
    assert cpu.main() == 1
    lines = [json.loads(line) for line in (tmp_path / "cpu.jsonl").read_text().splitlines()]
    assert {(one["engine"], one["metric"], len(one["repeats"])) for one in lines} == {
        (engine, metric, 5)
        for engine in ("camshaft", "openvino")
        for metric in ("out_tok_s", "foreign_share")
    }
    assert len({one["run_id"] for one in lines}) == 1
    assert "numpy" in {name for one in lines for name in one["versions"]}
    assert "MISSED" in capsys.readouterr().out
