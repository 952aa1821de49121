"""Tiers under the whole engine, in debug mode, on poisoned pages: answers stay the same."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.pressure import press, requests

MODELS = {"llama": LLAMA, "hybrid": HYBRID}
SEEDED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}
MEMORY = {"use": "memory", "capacity": "1MiB"}


def waves() -> list[list[Request]]:
    """Groups of requests with five beginnings, of which the device holds two at a time."""
    chance = random.Random(7)
    starts = [[chance.randrange(256) for _ in range(40)] for _ in range(5)]
    made = []
    for wave in range(10):
        group = []
        for number in range(3):
            own = [chance.randrange(256) for _ in range(chance.choice([1, 3, 9]))]
            params: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 1}
            if number % 2:
                params |= {**SEEDED, "seed": 10 * wave + number}
            prompt = starts[(wave + number) % 5] + own
            group.append(make_request(f"r{wave}.{number}", prompt, **params))
        made.append(group)
    return made


def answered(engine: Engine) -> dict[str, RequestOutput]:
    results: dict[str, RequestOutput] = {}
    for wave in waves():
        for request in wave:
            engine.submit(request)
        results |= run_to_end(engine, most_steps=10**6)
    return results


@functools.cache
def without_a_cache(model: str) -> dict[str, RequestOutput]:
    return answered(compose_toy(MODELS[model], {"cache": {"prefix": False}}).engine)


def tiered(model: str, cache: dict[str, Any], **engine: Any) -> Engine:
    size = cache.get("page_tokens", 4)
    cache = {
        "use": "tiered",
        "tiers": [MEMORY],
        "memory": pool(120 // size, MODELS[model], size),
        "unit_tokens": 4,
        "load": "always",
        **cache,
    }
    changes = {"cache": cache, "engine": {"poison": True, **engine}}
    return compose_toy(MODELS[model], changes).engine


LATE = {"executor": {"use": "late", "late_steps": 1}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "paged": ("llama", {}, {}),
    "radix": ("llama", {"over": "radix"}, {}),
    "token table": (
        "llama",
        {"over": {"use": "token_table", "expected_share": 0.2}, "page_tokens": 1},
        {},
    ),
    "late results": ("llama", {}, LATE),
    "no overlap": ("llama", {"over": "radix"}, {"depth": 0}),
    "windows": ("hybrid", {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_without_a_cache(case: str) -> None:
    model, cache, parts = CASES[case]
    engine = tiered(model, cache, **parts)
    results = answered(engine)
    for name, wanted in without_a_cache(model).items():
        assert results[name].token_ids == wanted.token_ids, name
        assert results[name].logprobs == wanted.logprobs, name
    counts = engine.parts.cache.counters()
    assert counts["hit_tokens_memory"] > 200
    assert engine.stats.evictions["space"] > 0
    assert all(one.in_use == one.pinned == 0 for one in engine.usage())
    engine.close()


def test_under_pressure_with_aborts_everything_ends_and_comes_back(tmp_path: Path) -> None:
    work = requests(40, seed=1)
    files = {"use": "files", "directory": str(tmp_path), "capacity": "8MiB"}
    tiers = [{"use": "memory", "capacity": "64KiB"}, files]
    engine = tiered("llama", {"tiers": tiers, "memory": pool(70), "settle_s": 0.0})
    outcome = press(engine, work, seed=2)
    assert set(outcome.results) == {one.id for one in work}
    assert all(one.free + one.evictable == one.total for one in engine.usage())
    assert engine.parts.cache.check_integrity() == []
    counts = engine.parts.cache.counters()
    assert counts["hit_tokens_memory"] > 0
    assert counts["files_stored"] > 0
    engine.close()
