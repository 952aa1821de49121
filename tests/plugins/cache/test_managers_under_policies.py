"""Random use of each KV manager under each eviction policy: nobody loses pages that are in use."""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

import pytest

from camshaft.component import Component, Settings
from camshaft.contracts.cache import CacheSpec, KVManager
from camshaft.contracts.eviction import EvictionPolicy
from camshaft.plugins.cache.components import (
    PagedSettings,
    TtlSettings,
    camshaft_components,
)
from camshaft.plugins.cache.token_table.run_table import RunTable
from camshaft.testing.cache import use_at_random
from tests.plugins.cache.tiers import tiered

MANAGERS = {
    "paged": ("full", "sliding"),
    "radix": ("full",),
    "token_table": ("full",),
    "tiered": ("full", "sliding"),
}
"""With the kinds of group that each serves."""

POLICIES = ["lru", "lfu", "fifo", "slru", "gdsf", "priority", "ttl"]

CATALOGUE: dict[tuple[str, str], Component] = {
    (one.kind, one.name): one for one in camshaft_components()
}


def play(manager: str, policy: str, *, runs: int, steps: int) -> Counter[str]:
    cache, eviction = CATALOGUE["cache", manager], CATALOGUE["eviction", policy]
    # Seconds are calls of the clock here: pages become idle within a run.
    chosen: Settings = TtlSettings(idle_s=40.0) if policy == "ttl" else eviction.settings()

    def make(spec: CacheSpec) -> KVManager:
        if manager == "tiered":
            return tiered(spec)
        # behind the token table, which takes pages of one token, is a manager that takes any
        manager_class: Any = RunTable if manager == "token_table" else cache.load()
        # texts are short here, and are to be more than one unit
        small = PagedSettings(unit_tokens=6) if manager == "paged" else cache.settings()
        made: KVManager = manager_class(small, spec)
        return made

    def make_policy() -> EvictionPolicy:
        made: EvictionPolicy = eviction.load()(chosen)
        return made

    return use_at_random(
        make,
        MANAGERS[manager],
        make_policy,
        runs=runs,
        steps=steps,
        seed=crc32(f"{manager} {policy}".encode()),
        expires=policy == "ttl",
        tiered=manager == "tiered",
    )


def test_all_policies_of_this_folder_are_played() -> None:
    assert [name for kind, name in CATALOGUE if kind == "eviction"] == POLICIES


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("manager", MANAGERS)
def test_random_use(manager: str, policy: str) -> None:
    seen = play(manager, policy, runs=40 if manager == "tiered" else 60, steps=50)
    assert min(seen[one] for one in ("hit", "evict", "preempt")) > 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("manager", MANAGERS)
def test_much_random_use(manager: str, policy: str) -> None:
    play(manager, policy, runs=200, steps=100)
