"""Whichever scheduler runs, with whichever cache, scarce pages and late results: the same answers.

Every pair of values of two factors meets in one of the runs (a covering array of strength two).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from camshaft.loop.engine import Engine
from camshaft.registry import Registry
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, run_to_end
from camshaft.testing.toy import LLAMA, compose_toy, pool
from tests import pressure

Values = tuple[str, ...]

SCHEDULERS: dict[str, dict[str, Any]] = {
    "static": {"use": "static", "batch_size": 3},
    "dynamic": {"use": "dynamic", "min_batch_size": 2, "max_batch_size": 5, "max_wait_s": 0.001},
    "continuous": {},
    "whole": {"chunk_tokens": "off", "share_prefixes": False},
    "timed": {"step_ms": 1.0, "predictor": "fitted", "chunk_align": 4},
    "tenants": {"order": "tenants"},
    "prefix": {"order": "prefix", "prefix_window": 3},
    "buckets": {"length_buckets": (8, 60)},
    "nano": {"use": "nano_batch", "minimum_tokens": 4, "shares": [2, 1]},
    "slo": {"use": "slo", "predictor": "fitted"},
}
CACHES: dict[str, dict[str, Any]] = {
    "paged": {"page_tokens": 4},
    "no prefixes": {"page_tokens": 4, "prefix": False},
    "radix": {"use": "radix", "page_tokens": 4},
    "token_table": {"use": "token_table", "page_tokens": 1},
}
PAGES = {"many": 200, "scarce": 12}  # in pages of 4 tokens
LATENESS: dict[str, dict[str, Any]] = {
    "at once": {"depth": 0},
    "a step": {"depth": 1},
    "two late": {"depth": 2, "executor": {"use": "late", "late_steps": 2}},
}
FACTORS: tuple[Values, ...] = (
    tuple(SCHEDULERS),
    tuple(CACHES),
    tuple(PAGES),
    tuple(LATENESS),
)


def covering_array(factors: tuple[Values, ...] = FACTORS) -> list[Values]:
    """Return runs in which every two values of two factors meet; greedy, always the same."""
    places = list(itertools.combinations(range(len(factors)), 2))
    left = {
        (first, one, second, other)
        for first, second in places
        for one, other in itertools.product(factors[first], factors[second])
    }

    def pairs(run: Values) -> set[tuple[int, str, int, str]]:
        return {(first, run[first], second, run[second]) for first, second in places}

    runs = []
    while left:
        best = max(itertools.product(*factors), key=lambda run: len(pairs(run) & left))
        runs.append(best)
        left -= pairs(best)
    return runs


def fresh() -> list[Request]:
    return pressure.of_tenants(6, 12)


@functools.cache
def alone() -> dict[str, RequestOutput]:
    """Each request with nobody else in the engine and nothing in the cache."""
    engine = compose_toy(
        LLAMA, {"engine": {"depth": 0}, "cache": {"prefix": False}, "scheduler": {"max_running": 1}}
    ).engine
    for one in fresh():
        engine.submit(one)
    return run_to_end(engine)


def engine_of(scheduler: str, cache: str, pages: str, lateness: str) -> Engine:
    token_pages = PAGES[pages] * 4 // CACHES[cache]["page_tokens"]
    memory = pool(token_pages, page_tokens=CACHES[cache]["page_tokens"])
    changes = {
        "scheduler": {"step_tokens": 40, "max_running": 6, **SCHEDULERS[scheduler]},
        "cache": {**CACHES[cache], "memory": memory},
        "engine": LATENESS[lateness],
    }
    return compose_toy(LLAMA, changes).engine


def run(engine: Engine, asked: Iterable[Request]) -> dict[str, RequestOutput]:
    """Submit one request in each turn, and step to the end."""
    results: dict[str, RequestOutput] = {}
    for request in asked:
        engine.submit(request)
        collect(engine.step(), results)
    for name, one in run_to_end(engine).items():
        whole = results.setdefault(name, RequestOutput(id=name))
        whole.token_ids = whole.token_ids + one.token_ids
        whole.logprobs = whole.logprobs + one.logprobs
        whole.finish = one.finish
    return results


@pytest.mark.parametrize(("scheduler", "cache", "pages", "lateness"), covering_array())
def test_answers_do_not_depend_on_who_schedules(
    scheduler: str, cache: str, pages: str, lateness: str
) -> None:
    engine = engine_of(scheduler, cache, pages, lateness)
    found = run(engine, fresh())
    for name, wanted in alone().items():
        assert found[name].token_ids == wanted.token_ids, name
        assert found[name].logprobs == wanted.logprobs, name
    usage = engine.usage()[0]
    assert (usage.in_use, usage.pinned) == (0, 0)
    if pages == "scarce" and cache != "token_table":  # which looks ahead instead
        assert engine.stats.preemptions["no_space"] > 0


def test_the_array_covers_all_pairs_in_few_runs() -> None:
    runs = covering_array()
    for first, second in itertools.combinations(range(len(FACTORS)), 2):
        met = {(run[first], run[second]) for run in runs}
        assert met == set(itertools.product(FACTORS[first], FACTORS[second]))
    assert len(runs) <= 40


def test_every_scheduler_of_this_version_is_in_the_array() -> None:
    names = {one.name for one in Registry.discover().components("scheduler")}
    assert {one.get("use", "continuous") for one in SCHEDULERS.values()} == names
