"""The soak: what counts as unexpected, how growth is told, and a few seconds of it on a toy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import results, soak
from benchmarks.soak import Seen


def test_only_a_full_queue_is_expected_beside_what_was_wanted() -> None:
    seen = Seen()
    for status in (200, 429, 500, 0):
        seen.note("whole", status, 200)
    seen.note("malformed", 400, 400)
    assert [one.split(" instead")[0] for one in seen.unexpected] == ["whole: 500", "whole: 0"]
    assert sum(seen.counts.values()) == 5


def test_growth_leaves_the_start_out_and_is_no_matter_of_one_sample() -> None:
    seen = Seen(memory=[10] * 20 + [100] * 70 + [103] * 9 + [900])
    assert seen.growth == pytest.approx(0.03)


@pytest.mark.slow
def test_a_toy_stands_a_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(soak, "MOST_GROWTH", 1.0)  # it is still warming up
    recipe = Path(__file__).parents[2] / "recipes" / "toy.yaml"
    argv = ["soak", "--recipe", str(recipe), "--seconds", "4", "--clients", "8", "--pool", "1MiB"]
    monkeypatch.setattr(sys, "argv", argv)
    assert soak.main() == 0
    lines = [json.loads(one) for one in (tmp_path / "soak.jsonl").read_text().splitlines()]
    values = {one["metric"]: one["value"] for one in lines}
    assert values["unexpected"] == 0
    assert values["requests"] > 20
