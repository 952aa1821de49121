"""The benchmark of caches on traces small enough for every test run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cache_traces, results
from benchmarks.cache_traces import (
    NULL,
    Bench,
    Case,
    cases,
    figures,
    installed,
    measure,
    told,
)
from benchmarks.replay import Replayed, Served
from benchmarks.traces import Trace, multi_turn, shared_documents

TALK = multi_turn(1, 300, conversations=8, turns=3, system=32, added=(8, 30), outputs=(2, 8))
ASK = shared_documents(1, 300, documents=2, tokens=160, questions=12, outputs=(2, 8))
BENCH = Bench(NULL, page_tokens=4, real=False)


@pytest.mark.parametrize("cache", installed("cache"))
@pytest.mark.parametrize("trace", [TALK, ASK], ids=["talk", "ask"])
def test_an_unlimited_pool_comes_close_to_the_ideal(trace: Trace, cache: str) -> None:
    done = BENCH.run(Case(trace, cache, "lru", 200))
    assert len(done.served) == trace.requests
    assert 0.9 < done.hit_rate / done.ideal_hit_rate <= 1
    assert (done.evicted_pages, done.preemptions) == (0, 0)


def test_a_small_pool_evicts_and_hits_less() -> None:
    small = BENCH.run(Case(TALK, "paged", "lru", 30))
    assert small.evicted_pages > 0
    assert small.hit_rate < 0.9 * small.ideal_hit_rate


def test_hits_do_not_depend_on_the_machine() -> None:
    case = Case(TALK, "paged", "lru", 40)
    assert BENCH.run(case).served == BENCH.run(case).served


def test_each_turn_asks_with_all_that_was_said() -> None:
    served = BENCH.run(Case(TALK, "paged", "lru", 200)).served
    longest = max(served, key=lambda one: len(one.prompt))
    earlier = [one for one in served if longest.prompt[: len(one.prompt)] == one.prompt]
    assert len(earlier) == 3
    for one in earlier[:-1]:
        said = one.prompt + one.answer
        assert longest.prompt[: len(said)] == said


def test_the_ideal_serves_all_but_the_last_token() -> None:
    done = Replayed(
        served=[Served([1, 2, 3], 0.0, answer=[7, 8]), Served([1, 2, 3, 7, 8, 9], 0.0, answer=[7])]
    )
    # of the second prompt all that was computed: not 8, which nobody read, and so not 9 either
    assert done.ideal_hit_rate == 4 / 9


def test_host_times_tell_admissions_from_other_steps() -> None:
    done = Replayed(plain_us=[10.0, 12.0, 50.0], admitting_us=[(112.0, 2), (42.0, 1)])
    assert (done.step_us, done.admission_us) == (12.0, 40.0)


def test_in_virtual_time_the_first_token_comes_as_late_as_the_time_model_says() -> None:
    done = BENCH.run(Case(ASK, "paged", "lru", 200))
    found = {
        one.metric: one.repeats[0]
        for one in figures(Case(ASK, "paged", "lru", 200), done, "run-1", model="none")
    }
    # a prompt that nothing is cached of takes a step of 10 ms and 50 us a token, if not more
    slowest = max(len(one.prompt) - one.cached for one in done.served)
    assert found["ttft_ms_p50"] >= 10
    assert found["ttft_ms_p99"] >= found["ttft_ms_p50"]
    assert max(one.first_s - one.due_s for one in done.served) >= 0.01 + 50e-6 * slowest


def test_a_missed_bar_is_said() -> None:
    poor = Replayed(
        served=[Served([1] * 9, 0.0), Served([1] * 9, 0.0)],
        plain_us=[1.0],
        admitting_us=[(2.0, 1)],
        held=[(6, 2)],
    )
    assert "bar 95%: MISSED" in told(Case(TALK, "paged", "lru", 200), poor)
    assert "bar" not in told(Case(TALK, "paged", "lru", 40), poor)


def test_processes_show_what_one_does_and_in_the_same_order() -> None:
    wanted = list(cases([TALK, ASK], ["paged"], ["lru"], [40]))

    def hits(jobs: int) -> list[tuple[str, list[float]]]:
        shown = measure(BENCH, wanted, "run-1", "none", jobs=jobs)
        return [(one.figures[0].workload, one.figures[0].repeats) for one in shown]

    assert hits(2) == hits(1)
    assert [name for name, _ in hits(1)] == ["multi-turn@40%", "shared-documents@40%"]


def test_a_real_model_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cache_traces.py", "--real", "--jobs", "2"])
    with pytest.raises(SystemExit):
        cache_traces.main()


def test_policies_are_compared_only_where_something_is_evicted() -> None:
    wanted = list(cases([TALK], ["paged"], ["lru", "lfu"], [200, 40]))
    assert [(one.pool, one.eviction) for one in wanted] == [(200, "lru"), (40, "lru"), (40, "lfu")]


def test_a_real_model_tells_times_to_the_first_token() -> None:
    done = BENCH.run(Case(ASK, "paged", "lru", 200))
    found = {
        one.metric: one.repeats[0]
        for one in figures(Case(ASK, "paged", "lru", 200), done, "run-1", model="smollm2")
    }
    assert 0 < found["ttft_ms_p50"] <= found["ttft_ms_p99"]
    assert "host_us_per_step" not in found


def test_the_command_writes_a_figure_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(cache_traces, "traces", lambda **_: (TALK, ASK))
    words = ["--caches", "paged", "--evictions", "lru", "--pools", "100", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["cache_traces.py", *words])
    assert cache_traces.main() == 0
    lines = [json.loads(one) for one in (tmp_path / "cache_traces.jsonl").read_text().splitlines()]
    assert {one["workload"] for one in lines} == {"multi-turn@100%", "shared-documents@100%"}
    assert {one["recipe"] for one in lines} == {"paged+lru"}
    assert {"hit_rate", "host_us_per_step", "pages_per_request"} <= {one["metric"] for one in lines}
    assert "paged+lru" in capsys.readouterr().out
