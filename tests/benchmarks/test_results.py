"""Recorded figures: one line of JSON each, with the same fields everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.results import Figure, write

FIELDS = {
    "run_id",
    "bench",
    "model",
    "workload",
    "recipe",
    "engine",
    "device",
    "metric",
    "value",
    "unit",
    "repeats",
    "commit",
    "date",
    "versions",
    "command",
}


def figure(**changes: Any) -> Figure:
    fields = {
        "run_id": "host-step-1",
        "bench": "host-step",
        "model": "none",
        "workload": "decode-256",
        "recipe": "continuous",
        "engine": "camshaft",
        "device": "a processor (2 threads)",
        "metric": "host_us_per_step",
        "unit": "us",
        "repeats": [30.0, 10.0, 20.0],
    }
    return Figure(**{**fields, **changes})


def test_a_line_has_the_documented_fields() -> None:
    line = json.loads(figure().line())
    assert set(line) == FIELDS
    assert (line["engine"], line["metric"], line["unit"]) == ("camshaft", "host_us_per_step", "us")
    assert re.fullmatch(r"[0-9a-f]{12}\+?", line["commit"])
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", line["date"])
    assert {"python", "camshaft", "torch"} <= set(line["versions"])


def test_the_value_is_the_median_unless_it_is_given() -> None:
    line = json.loads(figure().line())
    assert (line["value"], line["repeats"]) == (20.0, [30.0, 10.0, 20.0])
    assert json.loads(figure(value=7.0).line())["value"] == 7.0


def test_figures_are_added_to_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    write([figure()], "host_step")
    path = write([figure(engine="other")], "host_step")
    engines = [json.loads(line)["engine"] for line in path.read_text().splitlines()]
    assert engines == ["camshaft", "other"]
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "other",
        "decode-256",
        "host_us_per_step",
        "20.000",
        "us",
    ]


def test_every_recorded_line_has_them_too() -> None:
    recorded = [
        (path.name, number, json.loads(line))
        for path in results.RESULTS.glob("*.jsonl")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    assert [one[:2] for one in recorded if set(one[2]) != FIELDS] == []
