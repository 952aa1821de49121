"""Measuring on a scripted engine, with a clock of the test's own where times matter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.errors import CamshaftError, RequestError
from camshaft.plugins.lab import measure as module
from camshaft.plugins.lab.measure import Measurement, measure
from camshaft.plugins.lab.workloads import Job
from camshaft.request import Request
from camshaft.testing.scripted import ScriptedEngine, ScriptError, Traits

PROMPT = tuple(range(40, 90))


def run(*jobs: Job, engine: Any = None) -> Measurement:
    used: Any = engine or ScriptedEngine()
    return measure(used, jobs)


@pytest.fixture
def half_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that reads half a second more at each look: start, after each step, end."""
    readings = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(readings) / 2)
    monkeypatch.setattr(module, "time", clock)


def test_tokens_and_requests_are_counted() -> None:
    done = run(Job(PROMPT, 3), Job(PROMPT[:7], 5), Job((50,), 1))
    assert (done.requests, done.n_in, done.n_out) == (3, 58, 9)


def test_the_first_token_has_a_time_and_later_ones_a_mean(half_seconds: None) -> None:
    done = run(Job(PROMPT, 3), Job(PROMPT, 1))
    assert done.ttft_ms == (500.0, 500.0)
    assert done.tpot_ms == (500.0,)  # a single token has no later ones
    assert done.seconds == 2.0


def test_the_summary_is_what_programs_read(half_seconds: None) -> None:
    assert run(Job(PROMPT, 3), Job(PROMPT, 1)).summary() == {
        "seconds": 2.0,
        "requests": 2,
        "n_in": 100,
        "n_out": 4,
        "out_tok_s": 2.0,
        "in_tok_s": 50.0,
        "ttft_ms": {"p50": 500.0, "p99": 500.0},
        "tpot_ms": {"p50": 500.0, "p99": 500.0},
    }


def test_without_later_tokens_there_is_no_time_for_them() -> None:
    assert run(Job(PROMPT, 1)).summary()["tpot_ms"] is None


def test_percentiles_are_interpolated() -> None:
    done = Measurement(1.0, 3, 0, 3, ttft_ms=(1.0, 2.0, 10.0), tpot_ms=())
    assert done.summary()["ttft_ms"] == {"p50": 2.0, "p99": 9.84}


def test_requests_that_wait_for_a_place_wait_in_their_first_token(half_seconds: None) -> None:
    engine = ScriptedEngine(traits=Traits(max_running=1))
    assert run(Job(PROMPT, 2), Job(PROMPT, 2), engine=engine).ttft_ms == (500.0, 1500.0)


def test_the_end_of_text_is_ignored() -> None:
    def ends_at_once(_: Request) -> Iterator[int]:
        yield from (258, 258, 258, 258)

    assert run(Job(PROMPT, 4), engine=ScriptedEngine(ends_at_once)).n_out == 4


def test_each_run_starts_with_a_cold_cache_and_greedy_requests() -> None:
    engine = ScriptedEngine()
    for _ in range(2):
        run(Job(PROMPT, 2), engine=engine)
    assert (engine.stats.prompt_tokens, engine.stats.cached_tokens) == (100, 0)
    assert {one.params.temperature for one in engine.submitted} == {0.0}


def test_what_the_cache_did_is_told_of_this_run_alone() -> None:
    engine = ScriptedEngine(traits=Traits(max_running=1))
    engine.stats.evictions["space"] = engine.stats.preemptions["no_space"] = 7
    engine.stats.prompt_tokens = engine.stats.cached_tokens = 1000
    use = run(Job(PROMPT, 3), Job(PROMPT, 3), engine=engine).cache
    assert (use.prompt_tokens, use.hit_tokens) == (100, 48)
    assert (use.evicted_pages, use.preemptions) == ({}, {})
    assert use.unused_tokens == 13.0  # seen after the first turn: 50 + 1 tokens in 4 pages of 16
    assert use.most_in_use == (4,)
    assert use.summary([10], [256])["hit_rate"] == 0.48
    assert use.summary([10], [256])["pools"] == [
        {"pages": 10, "bytes": 2560, "most_bytes_in_use": 1024}
    ]


def test_an_answer_that_is_cut_short_is_no_measurement() -> None:
    engine = ScriptedEngine(traits=Traits(room=54))
    with pytest.raises(CamshaftError, match=r"got 4 of 9 tokens.*model\.max_context"):
        run(Job(PROMPT, 9), engine=engine)


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RequestError):
        run(Job(PROMPT, 1), engine=ScriptedEngine(traits=Traits(room=50)))


def test_a_request_that_fails_is_named() -> None:
    def fails(_: Request) -> Iterator[int]:
        yield 65
        raise ScriptError("the sampler failed")

    with pytest.raises(CamshaftError, match="job0 ended with 'error': the sampler failed"):
        run(Job(PROMPT, 4), engine=ScriptedEngine(fails))
