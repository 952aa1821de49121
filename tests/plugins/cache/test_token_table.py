from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from camshaft import CamshaftError
from camshaft.compose import draw
from camshaft.contracts.cache import Delta, GroupSpec, NoSpace, Prefix, Wait
from camshaft.errors import RecipeError
from camshaft.plugins.cache.components import LruSettings, TokenTableSettings
from camshaft.plugins.cache.policies.lru import Lru
from camshaft.plugins.cache.token_table.manager import TokenTable
from camshaft.testing.cache_driver import (
    check_books,
    make_spec,
    open_request,
    ready,
    serve,
    tokens_of,
)
from camshaft.testing.toy import toy_recipe


def table(*pages: int, expected_share: float = 1.0) -> TokenTable:
    spec = replace(make_spec(*pages), page_tokens=1, eviction=lambda: Lru(LruSettings()))
    return TokenTable(TokenTableSettings(expected_share=expected_share), spec)


def ask(cache: TokenTable, uid: int, prompt: int, most_new: int) -> object:
    """Ask for the prompt's pages of a request that nobody shares anything with."""
    prefix = Prefix(tokens_of(prompt, 1000 * uid), most_tokens=prompt + most_new)
    return cache.allocate(uid, prefix, prompt)


def test_what_it_does_not_serve_is_refused() -> None:
    with pytest.raises(CamshaftError, match=r"page_tokens is 4\. Set that to 1, or"):
        TokenTable(TokenTableSettings(), make_spec(8))
    assert TokenTable.supports(1, {"full"}) == []
    assert TokenTable.supports(1, {"full", "sliding"}) == [
        "it keeps all tokens, and the model has sliding layers. Choose cache 'paged'."
    ]
    assert len(TokenTable.supports(16, {"sliding", "state"})) == 3


def test_faults_of_a_spec_are_named_together() -> None:
    groups = (GroupSpec("full", 4), GroupSpec("full", 0), GroupSpec("full", 0))
    with pytest.raises(CamshaftError, match="group 1 has 0 pages; group 2 has 0 pages"):
        TokenTable(TokenTableSettings(), replace(make_spec(4), page_tokens=1, groups=groups))


def test_a_recipe_with_other_pages_is_refused_before_a_weight_is_read() -> None:
    recipe = toy_recipe(changes={"cache": {"use": "token_table", "page_tokens": 16}})
    with pytest.raises(RecipeError, match=r"cache: 'token_table': it gives each token a page"):
        draw(recipe)


def test_usage_is_tokens() -> None:
    cache = table(100)
    for uid, length in enumerate([1, 7, 17, 30], 1):
        open_request(cache, uid, tokens_of(length, 100 * uid))
    assert cache.usage()[0].in_use == 1 + 7 + 17 + 30


def test_a_hit_is_exact_to_the_token() -> None:
    cache = table(100)
    serve(cache, 1, tokens_of(20), 1)
    assert [ready(cache, tokens_of(20), limit=one) for one in (1, 7, 19, 20)] == [1, 7, 19, 20]
    assert ready(cache, [*tokens_of(13), 7, 8, 9]) == 13


def test_two_prompts_share_as_far_as_they_are_equal() -> None:
    cache = table(100)
    first = serve(cache, 1, tokens_of(20), 1)
    second = serve(cache, 2, [*tokens_of(13), *tokens_of(7, 500)], 2)
    assert second.pages[:13] == first.pages[:13]
    assert cache.usage()[0].evictable == 20 + 7
    assert ready(cache, tokens_of(21)) == 20
    assert ready(cache, [*tokens_of(13), *tokens_of(8, 500)]) == 20
    check_books(cache)


def test_eviction_takes_single_tokens_from_the_end() -> None:
    cache = table(30)
    serve(cache, 1, tokens_of(20), 1)
    serve(cache, 2, [*tokens_of(15), 7, 8], 2)
    assert cache.evict(0, 3) == 3
    assert ready(cache, tokens_of(21)) == 17, "the branch that went unused for longest"
    assert ready(cache, [*tokens_of(15), 7, 8, 9]) == 17
    assert cache.evict(0, 30) == 20 + 2 - 3
    check_books(cache)


def test_what_a_request_wrote_behind_a_copy_of_cached_tokens_is_found_when_it_ends() -> None:
    cache = table(100)
    one, other = (open_request(cache, uid, tokens_of(10)) for uid in (1, 2))
    for uid in (1, 2):
        cache.commit(uid, 10, 1)
    for uid, opened in ((1, one), (2, other)):
        opened.prefix.tokens.extend(tokens_of(5, 100 * uid))
        cache.allocate(uid, opened.prefix, 15)
        cache.commit(uid, 15, 2)
    question = [*tokens_of(10), *tokens_of(5, 200), 7]
    assert ready(cache, question) == 10, "its pages have others of the first one before them"
    cache.free(2, 3)
    check_books(cache)
    assert ready(cache, question) == 15
    cache.free(1, 3)
    cache.fence(3)
    assert cache.usage()[0].evictable == 10 + 5 + 5
    assert cache.evict(0, 100) == 20


def test_pages_that_wait_for_a_step_may_be_told_to_wait_for_a_later_one() -> None:
    cache = table(100)
    _, other = (open_request(cache, uid, tokens_of(10)) for uid in (1, 2))
    for uid in (1, 2):
        cache.commit(uid, 10, 1)
    other.prefix.tokens.extend(tokens_of(5, 200))
    cache.allocate(2, other.prefix, 15)
    cache.commit(2, 15, 2)
    cache.free(1, 1)
    cache.free(2, 2)  # what it wrote is found behind the pages of request 1
    cache.fence(1)
    assert cache.usage()[0].evictable == 0
    cache.fence(2)
    assert cache.usage()[0][1:] == (85, 15, 0, 0)


def test_a_fork_does_not_enter_pages_of_a_parent_that_was_wrong() -> None:
    cache = table(100)
    for uid in (1, 2):
        open_request(cache, uid, tokens_of(10))
    for uid in (1, 2):  # the second has its own copy of what the tree has
        cache.commit(uid, 10, 1)
    assert ready(cache, tokens_of(10)) == 9
    cache.fork(2, 3, Prefix([*tokens_of(10), 7]), 10)
    cache.free(1, 1, forget=True)
    cache.free(2, 1, forget=True)
    cache.free(3, 1)
    cache.fence(1)
    assert ready(cache, tokens_of(10)) == 0
    check_books(cache)


def test_a_prompt_that_is_wholly_cached_leaves_its_answer_to_the_next_turn() -> None:
    cache = table(100)
    serve(cache, 1, tokens_of(10), 1)
    again = open_request(cache, 2, tokens_of(10))
    assert again.hit.ready == 9
    cache.commit(2, 10, 2)
    again.prefix.tokens.extend([7, 8])
    cache.allocate(2, again.prefix, 12)
    cache.commit(2, 12, 3)
    cache.free(2, 3)
    cache.fence(3)
    assert ready(cache, [*tokens_of(10), 7, 8, 9]) == 12
    check_books(cache)


def test_a_request_is_admitted_if_the_peak_of_use_fits() -> None:
    # request   now   left     when 1 ends, 10 steps on: 20 + 10 of it, 30 + 10 of the other
    #    1       20     10     when 2 ends, 40 steps on:                30 + 40
    #    2       30     40
    assert isinstance(ask_both(80), Delta)
    assert isinstance(ask_both(70), Delta)
    assert ask_both(69) == Wait(1)


def ask_both(pages: int) -> object:
    cache = table(pages)
    ask(cache, 1, 20, 10)
    return ask(cache, 2, 30, 40)


def test_all_ends_at_once_need_the_sum_of_all_lengths() -> None:
    cache = table(99)
    ask(cache, 1, 20, 30)
    assert ask(cache, 2, 20, 30) == Wait(1)


def test_a_share_of_max_tokens_may_be_expected() -> None:
    cache = table(99, expected_share=0.5)
    ask(cache, 1, 20, 30)
    assert isinstance(ask(cache, 2, 20, 30), Delta)


def test_tokens_that_several_hold_are_counted_once() -> None:
    cache = table(60)
    prompt = tokens_of(30)
    open_request(cache, 1, prompt)
    cache.commit(1, 30, 1)
    prefix = Prefix([*prompt, 7], most_tokens=41)
    hit = cache.match(prefix, 30)
    assert isinstance(cache.allocate(2, prefix, 31, hit), Delta), "11 of its own"
    assert cache.usage()[0].in_use == 31
    rest = Prefix(tokens_of(10, 500), most_tokens=20)
    assert cache.allocate(3, rest, 10) == Wait(1), "30 + 11 + 20"
    cache.fence(1)
    assert isinstance(cache.allocate(3, replace(rest, most_tokens=19, memo={}), 10), Delta)


def test_a_request_alone_is_always_admitted() -> None:
    cache = table(20)
    assert isinstance(ask(cache, 1, 10, 500), Delta)


def test_a_request_that_does_not_fit_is_told_to_wait_and_nobody_gives_way() -> None:
    cache = table(20)
    ask(cache, 1, 18, 2)
    assert ask(cache, 2, 10, 2) == Wait(1)
    known_to_nobody = cache.allocate(3, Prefix(tokens_of(10)), 10)
    assert known_to_nobody == NoSpace(0, 8), "without a length there is nothing to predict"


def test_small_requests_do_not_overtake_one_that_waits() -> None:
    cache = table(40)
    ask(cache, 1, 10, 10)
    assert ask(cache, 2, 20, 10) == Wait(1)
    assert ask(cache, 3, 1, 1) == Wait(1)
    cache.fence(1)
    assert isinstance(ask(cache, 3, 1, 1), Delta), "in the next step it came first"
    cache.free(1, 1)
    cache.fence(2)
    assert isinstance(ask(cache, 2, 20, 10), Delta)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda cache, hit: cache.allocate(1, Prefix(tokens_of(9)), 9, hit), "request 1 is open"),
        (lambda cache, hit: cache.allocate(9, Prefix(tokens_of(9)), 3, hit), "brings 8 tokens"),
        (lambda cache, hit: cache.commit(1, 10, 1), "commits 10 tokens, but has only 9"),
        (lambda cache, hit: cache.shrink(1, 8, 1), "9 are committed"),
        (lambda cache, hit: cache.fork(1, 1, Prefix(tokens_of(9)), 3), "request 1 is open"),
        (lambda cache, hit: cache.fork(1, 9, Prefix(tokens_of(10)), 10), "no pages for 10 tokens"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([1, 2, 3]), 3), "differs from it before"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([], "a"), 0), "another salt"),
    ],
)
def test_misuse_is_named(use: Callable[[TokenTable, object], object], message: str) -> None:
    cache = table(40)
    open_request(cache, 1, tokens_of(9))
    cache.commit(1, 9, 1)
    hit = cache.match(Prefix(tokens_of(9)), 8)
    with pytest.raises(ValueError, match=message):
        use(cache, hit)
    check_books(cache)


def test_a_stale_hit_is_refused() -> None:
    cache = table(20)
    serve(cache, 1, tokens_of(9), 1)
    prefix = Prefix(tokens_of(9))
    hit = cache.match(prefix, 8)
    cache.evict(0, 1)
    with pytest.raises(ValueError, match="match again"):
        cache.allocate(2, prefix, 9, hit)
