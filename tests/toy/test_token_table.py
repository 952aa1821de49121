"""A toy decoder over the token table answers as it does without a cache."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy, pool

PAGES = 150


def requests() -> list[Request]:
    """Sixteen requests, most with a common beginning, and two that are equal."""
    chance = random.Random(3)
    common = [chance.randrange(256) for _ in range(23)]
    made = []
    for number in range(16):
        own = [chance.randrange(256) for _ in range(chance.choice([1, 3, 8, 30]))]
        prompt = common if number in {4, 9} else (common if number % 3 else []) + own
        made.append(make_request(f"r{number}", prompt, 20, ignore_eos=True))
    return made


def run(changes: dict[str, dict[str, Any]]) -> tuple[dict[str, RequestOutput], Engine]:
    engine = compose_toy(changes=changes).engine
    for request in requests():
        engine.submit(request)
    return run_to_end(engine), engine


def plain() -> dict[str, list[int]]:
    results, _ = run({"engine": {"depth": 0}, "cache": {"prefix": False}})
    return {name: one.token_ids for name, one in results.items()}


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_answers_are_those_without_a_cache_though_tokens_are_few_and_poisoned(share: float) -> None:
    cache = {
        "use": "token_table",
        "page_tokens": 1,
        "memory": pool(PAGES, page_tokens=1),
        "expected_share": share,
    }
    results, engine = run(
        {
            "cache": cache,
            "scheduler": {"step_tokens": 24, "max_running": 12},
            "engine": {"depth": 1, "poison": True},
        }
    )
    assert {name: one.token_ids for name, one in results.items()} == plain()
    assert engine.stats.cached_tokens > 0
    assert engine.stats.evictions["space"] > 0
    assert (sum(engine.stats.preemptions.values()) > 0) == (share == 0.0)
    assert engine.parts.cache.check_integrity() == []
    assert engine.usage()[0].total == PAGES


def test_sdpa_reads_pages_of_one_token() -> None:
    changes: dict[str, dict[str, Any]] = {
        "attention": {"use": "sdpa"},
        "engine": {"deterministic": False},
    }
    cache = {"use": "token_table", "page_tokens": 1, "memory": pool(PAGES, page_tokens=1)}
    results, engine = run({**changes, "cache": cache})
    assert {name: one.token_ids for name, one in results.items()} == plain()
    assert engine.stats.cached_tokens > 0
