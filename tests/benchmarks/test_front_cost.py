"""What HTTP costs: how it is told, and a toy both ways."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks import front_cost, results
from benchmarks.front_cost import Round, cost, jobs, together


def test_a_round_counts_to_its_last_token_and_takes_the_middle_of_the_first() -> None:
    assert Round.of([0.1, 0.3, 0.2], 2.0, 300) == Round(150.0, 200.0)


def test_the_cost_is_that_of_the_medians() -> None:
    fast, slow = [Round(100, 10), Round(1, 99), Round(110, 11)], [Round(95, 12)] * 3
    share, late_ms = cost({"in process": fast, "http": slow})
    assert (round(share, 6), late_ms) == (0.05, 1)


def test_no_two_rounds_have_a_prompt_in_common() -> None:
    one, other = (
        {text for stream in jobs(32, 4, 60, 8, seed) for text, _ in stream} for seed in (1, 2)
    )
    assert len(one) == 128
    assert not one & other


def test_the_burst_at_the_begin_does_not_count() -> None:
    async def ask(text: str, outputs: int) -> float:
        return {"first": 9.0, "second": 0.2}[text]

    streams = [[("first", 3), ("second", 5)]] * 2
    assert asyncio.run(together(streams, ask)).ttft_ms == pytest.approx(200)


@pytest.mark.slow
def test_a_toy_is_measured_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(front_cost, "MOST_SHARE", 1.0)  # a toy's steps are nothing but cost
    monkeypatch.setattr(front_cost, "MOST_MS", 10_000.0)
    recipe = str(Path(__file__).parents[2] / "recipes" / "toy.yaml")
    words = "--streams 4 --words 9 --output 6 --each 2 --repeats 1".split()  # noqa: SIM905
    monkeypatch.setattr(sys, "argv", ["front_cost", "--recipe", recipe, *words])
    assert front_cost.main() == 0
    lines = [json.loads(one) for one in (tmp_path / "front_cost.jsonl").read_text().splitlines()]
    assert [one["metric"] for one in lines] == ["out_tok_s", "ttft_ms"] * 2
