"""What the paged cache tells eviction policies, and who goes first by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from camshaft import Registry
from camshaft.contracts.eviction import EvictionPolicy
from camshaft.plugins.cache.components import (
    GdsfSettings,
    LruSettings,
    PagedSettings,
    PrioritySettings,
    SlruSettings,
)
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.cache.policies.gdsf import Gdsf
from camshaft.plugins.cache.policies.lru import Lru
from camshaft.plugins.cache.policies.priority import Priority
from camshaft.plugins.cache.policies.slru import Slru
from camshaft.request import CacheScope
from camshaft.testing.cache_driver import make_spec, open_request, ready, serve, tokens_of


def paged(pages: int, policy: Callable[[], EvictionPolicy]) -> Paged:
    return Paged(PagedSettings(), make_spec(pages, eviction=policy))


def slru() -> Slru:
    return Slru(SlruSettings())


def priority() -> Priority:
    return Priority(PrioritySettings())


def test_under_gdsf_a_page_of_a_long_sequence_outlives_an_equally_used_short_one() -> None:
    cache = paged(12, lambda: Gdsf(GdsfSettings(attention_tokens=64)))
    serve(cache, 1, tokens_of(32), 1)
    serve(cache, 2, tokens_of(8, 300), 2)
    cache.evict(0, 3)
    assert ready(cache, tokens_of(8, 300), limit=8) == 0, "2 pages of 8 tokens go first"
    assert ready(cache, tokens_of(32), limit=32) == 28, "then the deepest of 32 tokens"


def test_under_gdsf_a_prefix_is_worth_what_its_longest_sequence_is() -> None:
    cache = paged(40, lambda: Gdsf(GdsfSettings()))
    serve(cache, 1, tokens_of(8), 1)
    serve(cache, 2, [*tokens_of(8), *tokens_of(32, 300)], 2)
    assert {run.reach for run in cache.pools[0].runs.values()} == {40}


def test_under_slru_prompts_that_are_never_asked_again_do_not_evict_a_used_prefix() -> None:
    cache = paged(8, slru)
    for uid in (1, 2):
        serve(cache, uid, tokens_of(9), uid)
    for uid in range(3, 20):
        serve(cache, uid, tokens_of(12, 1000 * uid), uid)
    assert ready(cache, tokens_of(9)) == 8


def test_under_priority_pages_are_as_urgent_as_their_most_urgent_user() -> None:
    cache = paged(12, priority)
    serve(cache, 1, tokens_of(8), 1, priority=9)
    serve(cache, 2, tokens_of(8, 300), 2, priority=5)
    serve(cache, 3, tokens_of(9), 3, priority=0)
    assert cache.evict(0, 2) == 2
    assert ready(cache, tokens_of(8), limit=8) == 8, "a request of priority 0 used them"
    assert ready(cache, tokens_of(8, 300), limit=8) == 0


def test_events_say_why_pages_went() -> None:
    cache = paged(6, slru)
    serve(cache, 1, tokens_of(8), 1, scope=CacheScope("n", 1))
    serve(cache, 2, tokens_of(8, 300), 2)
    serve(cache, 3, tokens_of(4, 500), 3, scope=CacheScope("n", 2))
    cache.events()
    open_request(cache, 4, tokens_of(16, 700))
    assert [tuple(one) for one in cache.events()] == [
        ("evicted", 0, 2, "version"),
        ("evicted", 0, 1, "space"),
    ]


@pytest.mark.parametrize("manager", ["paged", "radix", "token_table"])
def test_pages_that_were_too_old_are_told_from_those_that_the_policy_chose(manager: str) -> None:
    registry, seconds = Registry.discover(), [0.0]
    component = registry.get("cache", manager)
    spec = replace(
        make_spec(6, now=lambda: seconds[0], eviction=lambda: Lru(LruSettings())), page_tokens=1
    )
    cache = component.load()(component.settings(), spec)
    serve(cache, 1, tokens_of(2), 1, scope=CacheScope("n", 1, ttl_s=10.0))
    serve(cache, 2, tokens_of(2, 300), 2)
    seconds[0] = 20.0
    cache.events()
    assert cache.evict(0, 3) == 3
    open_request(cache, 4, tokens_of(6, 700))
    assert [tuple(one) for one in cache.events()] == [
        ("evicted", 0, 2, "expired"),
        ("evicted", 0, 1, "asked"),
        ("evicted", 0, 1, "space"),
    ]
