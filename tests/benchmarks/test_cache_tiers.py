"""The benchmark of tiers on traces small enough for every test run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cache_tiers import all_figures, missed, play, told
from benchmarks.cache_traces import NULL, Bench
from benchmarks.replay import Replayed, Served
from benchmarks.traces import multi_turn, shared_documents

TALK = multi_turn(1, 300, conversations=8, turns=3, system=32, added=(8, 30), outputs=(2, 8))
ASK = shared_documents(1, 300, documents=3, tokens=160, questions=12, outputs=(2, 8), gap_s=2.0)
BENCH = Bench(NULL, page_tokens=4, real=False)


@pytest.mark.parametrize("trace", [TALK, ASK], ids=["talk", "ask"])
def test_tiers_below_a_small_pool_serve_what_a_large_one_would(trace) -> None:
    done = play(BENCH, trace, "paged", real=False)
    assert list(missed(done, real=False)) == []
    assert done["recompute"].hit_rate < 0.9 * done["unlimited"].hit_rate
    counts = done["tiered"].counters
    assert counts["hit_tokens_memory"] > 0
    assert counts["files_stored"] > 0
    found = {
        (one.recipe, one.metric): one.repeats
        for one in all_figures(trace, done, "paged", "r", "none")
    }
    assert found["tiered(paged)+lru", "hit_tokens_memory"] == [counts["hit_tokens_memory"]]


def test_missed_bars_are_said() -> None:
    def once(cached: int, first_s: float) -> Replayed:
        return Replayed(served=[Served([1] * 10, 0.0, [1], cached, first_s)])

    done = {"unlimited": once(8, 0.1), "recompute": once(0, 0.2), "tiered": once(7, 0.3)}
    assert list(missed(done, real=True)) == [
        "hits are 87.5% of unlimited, not 90%",
        "the first token comes after 3.00 times unlimited, not 1.3",
        "the first token does not come before it would be recomputed",
    ]
    assert list(missed(done, real=False)) == ["hits are 87.5% of unlimited, not 90%"]
    good = {**done, "tiered": replace(once(8, 0.12), counters=dict.fromkeys(NAMES, 1.0))}
    assert list(told(TALK, good, real=True))[-1].endswith("bars: hold")


NAMES = ("hit_tokens_device", "hit_tokens_memory", "hit_tokens_files")
