"""Whatever goes first, answers stay the same: each eviction policy in a pool that is too small."""

from __future__ import annotations

import functools
import random

import pytest

from camshaft.registry import Registry
from camshaft.request import CacheScope, Request
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy, pool

POLICIES = [one.name for one in Registry.discover().components("eviction")]


def requests() -> list[Request]:
    """Two rounds over five shared beginnings; some with a namespace that gets a new version."""
    chance = random.Random(3)
    beginnings = [[chance.randrange(256) for _ in range(17)] for _ in range(5)]
    scopes = [CacheScope(), CacheScope("n", 1), CacheScope("n", 2)]
    return [
        make_request(
            f"r{number}",
            [*beginnings[number % 5], number],
            max_tokens=6,
            ignore_eos=True,
            priority=number % 3,
            scope=scopes[number // 5 if number % 5 == 0 else 0],
        )
        for number in range(15)
    ]


@functools.cache
def without_reuse() -> dict[str, list[int]]:
    engine = compose_toy(changes={"cache": {"prefix": False}}).engine
    for one in requests():
        engine.submit(one)
    return {name: one.token_ids for name, one in run_to_end(engine).items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_do_not_depend_on_the_eviction_policy(policy: str) -> None:
    memory = {"memory": pool(20, page_tokens=4), "page_tokens": 4}
    composed = compose_toy(changes={"cache": memory}, overrides=[f"cache.eviction={policy}"])
    engine = composed.engine
    found: dict[str, list[int]] = {}
    for turn in range(0, 15, 5):
        for one in requests()[turn : turn + 5]:
            engine.submit(one)
        found |= {name: one.token_ids for name, one in run_to_end(engine).items()}
    assert found == without_reuse()
    assert engine.stats.cached_tokens > 0
    assert engine.stats.evictions["space"] > 0
