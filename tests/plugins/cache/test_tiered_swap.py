"""Preemption by swap: what leaves, who gets it back, and what becomes of it otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.contracts.cache import Prefix, SwapCost
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.request import EVERYWHERE, CacheScope
from camshaft.testing.cache_core import ModelCore
from camshaft.testing.cache_device import Running
from camshaft.testing.cache_driver import make_spec, open_request, tokens_of
from tests.plugins.cache.test_tiered import UNIT, A, B, Play
from tests.plugins.cache.tiers import files, memory


def decode(core: ModelCore, request: Running, tokens: int) -> None:
    for _ in range(tokens):
        core.launch([(request, 100)], token=9)


def prompt_served(play: Play) -> Running:
    """Serve the prompt A; its request stays open."""
    request = play.core.arrive(Prefix(list(A)))
    play.core.admit(request, 100)
    play.core.launch([(request, 100)], token=9)
    play.core.settle()
    play.core.push()
    return request


def swapped_out(play: Play, flying: int = 0, scope: CacheScope = EVERYWHERE) -> Running:
    """Serve A up to 19 tokens, the last `flying` of them in flight, and swap the request out."""
    core = play.core
    request = core.arrive(Prefix(list(A), scope=scope))
    core.admit(request, 100)
    decode(core, request, 3)
    while len(core.flights) > flying:
        core.settle()
    core.preempt(request, swap=True)
    return request


def back(play: Play, request: Running) -> int:
    """Let a request that was swapped out come back; return the tokens that it finds."""
    core = play.core
    while core.flights:
        core.settle()
    for _ in range(9):
        if request in core.waiting and core.admit(request, 100):
            return request.computed
        core.push()
        core.poll(100)
    raise AssertionError("it gets no pages")


@pytest.mark.parametrize("flying", [0, 1, 3])
@pytest.mark.parametrize("over", ["paged", "radix"])
def test_a_request_gets_back_what_it_computed_to_the_token(over: str, flying: int) -> None:
    play = Play(over=over)
    request = swapped_out(play, flying)
    play.core.push()
    play.empty()
    assert back(play, request) == 19
    assert (play.counted("swaps_out"), play.counted("swaps_back_whole")) == (1, 1)
    assert play.counted("swaps_lost_tokens") == 0
    decode(play.core, request, 4)
    play.check()


def test_clearing_the_cache_leaves_it_what_it_has_in_tiers() -> None:
    play = Play()
    request = swapped_out(play)
    play.core.push()
    play.cache.clear()
    play.settle()
    assert back(play, request) == 19
    play.check()


def test_pages_of_one_token_come_back_to_the_token_too() -> None:
    play = Play(pages=(40,), page_tokens=1, over="radix", unit_tokens=8)
    request = swapped_out(play)
    play.core.push()
    play.empty()
    assert back(play, request) == 19
    assert sum(len(table) for table in request.tables) == 20
    decode(play.core, request, 3)
    play.check()


def test_windows_come_back_whole() -> None:
    play = Play(pages=(8, 8), windows=(0, 5))
    request = swapped_out(play, 2)
    play.settle()
    for pool in (0, 1):
        play.core.evict(pool, play.cache.usage()[pool].evictable)
    assert back(play, request) == 19
    play.check()


def test_only_what_no_tier_has_leaves_under_a_name_of_its_own_and_is_gone_afterwards() -> None:
    play = Play()
    play.serve(A)
    store = play.cache.below.tiers[0].store
    assert store.used_bytes() == 4 * UNIT
    request = swapped_out(play)
    play.settle()
    assert store.used_bytes() == 5 * UNIT
    play.empty()
    assert back(play, request) == 19
    play.settle()
    assert store.used_bytes() == 4 * UNIT


def test_it_waits_while_its_pages_are_on_their_way_down() -> None:
    play = Play()
    request = swapped_out(play)
    play.core.push()
    play.empty()
    assert not play.core.admit(request, 100)
    assert play.cache.is_coming(request.transfer)
    play.core.poll(100)
    assert not play.cache.is_coming(request.transfer)
    assert back(play, request) == 19


def test_nobody_else_gets_it() -> None:
    play = Play()
    request = swapped_out(play)
    play.settle()
    play.empty()
    assert play.serve([*request.prefix.tokens, 1, 2]) == 16  # whole pages of what is declared
    play.settle()
    assert back(play, request) == 19


def test_a_request_that_ends_while_it_is_out_leaves_nothing() -> None:
    play = Play()
    request = swapped_out(play)
    play.core.push()
    play.core.end(request)
    play.settle()
    assert play.cache.below.tiers[0].store.used_bytes() == 4 * UNIT  # of its text
    assert play.counted("swaps_back_whole") == 0
    play.check()


def test_what_the_tier_loses_is_computed_again_and_counted() -> None:
    play = Play(memory(4 * UNIT))
    request = swapped_out(play)
    play.settle()
    play.empty()
    for first in (500, 600):
        play.serve(tokens_of(9, first))
        play.empty()
    found = back(play, request)
    assert found < 19
    assert play.counted("swaps_lost_tokens") == 19 - found
    assert play.counted("swaps_back_whole") == 0
    play.check()


def test_an_export_that_fails_costs_what_was_computed() -> None:
    play = Play()
    request = swapped_out(play)
    play.core.push()
    play.core.poll(100, ok=False)
    play.empty()
    assert back(play, request) == 0
    assert play.counted("swaps_lost_tokens") == 19


def test_it_comes_back_from_further_tiers_too(tmp_path: Any) -> None:
    play = Play(memory(6 * UNIT), files(tmp_path))
    request = swapped_out(play)
    play.settle()
    play.empty()
    play.serve(B)
    play.empty()
    assert back(play, request) == 19
    assert play.counted("hit_tokens_files") > 0
    play.check()


def test_a_load_that_the_device_left_behind_begins_anew_from_the_start() -> None:
    play = Play()
    core, request = play.core, swapped_out(play)
    play.settle()
    while request in core.waiting and not core.admit(request, 100):
        core.evict(0, 1)  # what the load goes on from, while it is on its way
        core.poll(100)
    assert request.computed == 19
    play.check()


def test_what_stands_on_a_wrong_page_is_lost() -> None:
    play = Play(pages=(20,))
    first = prompt_served(play)
    request = swapped_out(play)
    play.settle()
    play.core.end(first, forget=True)
    play.empty()
    assert back(play, request) == 0
    play.check()


def test_a_request_that_read_a_wrong_page_is_not_swapped_out() -> None:
    play = Play(pages=(20,))
    first = prompt_served(play)
    request = play.core.arrive(Prefix(list(A)))
    play.core.admit(request, 100)
    play.core.push()
    assert play.cache.swap_cost(request.uid, 16) == SwapCost(0, 0.0)
    play.core.end(first, forget=True)
    assert play.cache.swap_cost(request.uid, 16) is None


@pytest.mark.parametrize(
    "scope", [CacheScope("news", 1, 60.0), CacheScope("news", 1)], ids=["of an age", "outdated"]
)
def test_what_must_not_be_kept_for_long_is_not(scope: CacheScope) -> None:
    play = Play()
    request = swapped_out(play, scope=scope)
    play.settle()
    play.empty()
    play.serve(B, scope=CacheScope("news", 2))
    play.empty()
    assert back(play, request) == 0


def test_a_request_whose_pages_are_not_filled_yet_is_not_swapped_out() -> None:
    play = Play()
    request = swapped_out(play)
    play.settle()
    play.empty()
    assert back(play, request) == 19  # and what it comes back to is filled by the next moves
    assert play.cache.swap_cost(request.uid, 19) is None
    assert not play.cache.swap(request.uid, 19, play.core.newest)
    assert play.counted("swaps_refused") == 1
    play.core.push()
    assert play.cache.swap(request.uid, 19, play.core.newest)


def test_a_request_that_would_not_come_back_as_a_whole_is_not_swapped_out() -> None:
    play = Play(staging=4 * UNIT)
    request = swapped_out(play)
    assert not request.swapped
    assert play.counted("swaps_refused") == 1


def test_its_cost_is_of_what_only_swap_keeps() -> None:
    play = Play()
    request = play.core.arrive(Prefix(list(A)))
    play.core.admit(request, 100)
    decode(play.core, request, 3)
    assert play.cache.swap_cost(request.uid, 19) == SwapCost(tokens=3, seconds=0.0)
    tier = play.cache.below.tiers[0]
    tier.measured(2 * UNIT, 4.0, play.clock())
    assert play.cache.swap_cost(request.uid, 19) == SwapCost(tokens=3, seconds=2.0)


def test_a_cache_without_tiers_keeps_nothing() -> None:
    cache = Paged(PagedSettings(), make_spec(8))
    open_request(cache, 1, A)
    assert cache.no_swap
    assert not cache.swap(1, 8, 1)
    assert cache.swap_cost(1, 8) is None
