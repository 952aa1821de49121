from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from camshaft import CamshaftError
from camshaft.contracts.cache import Delta, GroupSpec, Hit, Prefix
from camshaft.plugins.cache.components import LruSettings, PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.cache.policies.lru import Lru
from camshaft.request import CacheScope
from camshaft.testing.cache_driver import (
    check_books,
    make_spec,
    open_request,
    ready,
    serve,
    tokens_of,
)


def paged(*pages: int, windows: tuple[int, ...] = (), page_tokens: int = 4) -> Paged:
    spec = make_spec(*pages, windows=windows)
    spec = replace(spec, page_tokens=page_tokens, eviction=lambda: Lru(LruSettings()))
    return Paged(PagedSettings(), spec)


def test_faults_of_a_spec_are_named_together() -> None:
    groups = (GroupSpec("full", 4), GroupSpec("state", 0), GroupSpec("sliding", 4))
    with pytest.raises(CamshaftError) as error:
        Paged(PagedSettings(), replace(make_spec(4), groups=groups))
    assert str(error.value).startswith(
        "cache 'paged' cannot serve this: group 1 is a state group; group 1 has 0 pages; "
        "group 2 is sliding, with a window of 0."
    )


def test_a_hit_is_whole_pages() -> None:
    cache = paged(8)
    serve(cache, 1, tokens_of(16), 1)
    assert [ready(cache, tokens_of(16), limit=one) for one in (3, 4, 7, 8, 15, 16)] == [
        0,
        4,
        4,
        8,
        12,
        16,
    ]


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_a_fully_cached_prompt_leaves_a_token_to_compute(page_tokens: int) -> None:
    cache = paged(200, page_tokens=page_tokens)
    for uid, length in enumerate([1, 15, 16, 17, 32, 48] * 3, 1):
        request = serve(cache, uid, tokens_of(length), uid)
        if uid > 6:
            assert request.hit.ready == page_tokens * ((length - 1) // page_tokens)


def test_the_oldest_prefix_is_evicted_first_and_from_its_end() -> None:
    cache = paged(7)
    serve(cache, 1, tokens_of(12), 1)
    serve(cache, 2, tokens_of(12, 300), 2)
    serve(cache, 3, tokens_of(5), 3)
    cache.evict(0, 1)
    assert (ready(cache, tokens_of(13)), ready(cache, tokens_of(13, 300))) == (8, 12)
    cache.evict(0, 2)
    assert (ready(cache, tokens_of(13)), ready(cache, tokens_of(13, 300))) == (4, 8)
    cache.evict(0, 2)
    assert (ready(cache, tokens_of(13)), ready(cache, tokens_of(13, 300))) == (4, 0)


def test_of_equal_pages_the_first_stays_registered() -> None:
    cache = paged(8)
    first, second = (open_request(cache, uid, tokens_of(8)) for uid in (1, 2))
    cache.commit(1, 8, 1)
    assert cache.commit(2, 8, 1) == Delta()
    third = open_request(cache, 3, tokens_of(9))
    assert third.pages[:2] == first.pages
    cache.free(2, 1)
    cache.fence(1)
    assert cache.usage()[0].free == 8 - 2 - 1, "the second copy is not cached"
    assert second.hit == Hit(0)


def test_what_was_computed_from_forgotten_pages_is_forgotten_too() -> None:
    cache = paged(16)
    open_request(cache, 1, tokens_of(4))
    cache.commit(1, 4, 1)
    reader = open_request(cache, 2, tokens_of(16), length=8)
    assert reader.hit.ready == 4
    cache.commit(2, 8, 2)
    assert ready(cache, tokens_of(16)) == 8
    cache.free(1, 2, forget=True)
    serve(cache, 3, tokens_of(4), 3)
    assert ready(cache, tokens_of(16)) == 4, "page 1 was computed from a page that was wrong"
    cache.allocate(2, reader.prefix, 16)
    cache.commit(2, 16, 4)
    serve(cache, 4, tokens_of(8), 5)
    assert ready(cache, tokens_of(16)) == 8, "and so are later pages of the same reader"
    assert cache.check_integrity() == []


def test_steps_after_a_failed_one_are_revoked_with_it() -> None:
    cache = paged(16)
    writer = open_request(cache, 1, tokens_of(16))
    cache.commit(1, 4, 1)
    cache.commit(1, 8, 2)
    cache.commit(1, 12, 3)
    cache.revoke(2)
    assert ready(cache, tokens_of(16)) == 4
    cache.commit(1, 16, 4)
    assert ready(cache, tokens_of(16)) == 4, "nothing that it writes can be trusted"
    assert not cache.requests[1].trusted
    assert writer.hit == Hit(0)


def test_a_step_that_is_complete_is_not_revoked() -> None:
    cache = paged(16)
    open_request(cache, 1, tokens_of(16))
    cache.commit(1, 4, 1)
    cache.fence(1)
    cache.commit(1, 8, 1)
    cache.revoke(1)
    assert ready(cache, tokens_of(16)) == 8


def test_a_fork_shares_the_fate_of_a_failed_step() -> None:
    cache = paged(16)
    open_request(cache, 1, tokens_of(6))
    cache.commit(1, 6, 1)
    cache.fork(1, 2, Prefix(tokens_of(8)), 6)
    cache.revoke(1)
    cache.allocate(2, cache.requests[2].prefix, 8)
    cache.commit(2, 8, 2)
    assert ready(cache, tokens_of(9)) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache, hit: cache.allocate(1, Prefix(tokens_of(9)), 9, hit), "request 1 is open"),
        (lambda cache, hit: cache.allocate(9, Prefix(tokens_of(9)), 3, hit), "brings 8 tokens"),
        (lambda cache, hit: cache.commit(1, 99, 2), "commits 99 tokens, but has only 9"),
        (lambda cache, hit: cache.shrink(1, 7, 2), "cannot shrink to 7 tokens: 8 are committed"),
        (lambda cache, hit: cache.fork(1, 2, Prefix(tokens_of(9)), 3), "request 2 is open"),
        (lambda cache, hit: cache.fork(1, 9, Prefix(tokens_of(9)), 13), "no pages for 13 tokens"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([1, 2, 3]), 3), "differs from it before"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([], "a"), 0), "another salt"),
        (lambda cache, hit: cache.fork(1, 9, Prefix(tokens_of(4)), 4), "given up pages of group 1"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    call: Callable[[Paged, Hit], object], message: str
) -> None:
    cache = paged(16, 16, windows=(0, 2))
    request = open_request(cache, 1, tokens_of(9))
    cache.commit(1, 8, 1)
    open_request(cache, 2, tokens_of(4, 300))
    before = cache.usage()
    with pytest.raises(ValueError, match=message):
        call(cache, cache.match(request.prefix, 8))
    assert cache.usage() == before
    assert cache.check_integrity() == []


def test_a_hit_of_an_older_epoch_is_refused() -> None:
    cache = paged(8)
    serve(cache, 1, tokens_of(8), 1)
    prefix = Prefix(tokens_of(9))
    hit = cache.match(prefix, 8)
    cache.evict(0, 1)
    with pytest.raises(ValueError, match="not of the present epoch"):
        cache.allocate(2, prefix, 9, hit)


def test_only_the_newest_events_are_kept() -> None:
    cache = paged(8)
    for uid in range(1, 5001):
        serve(cache, uid, tokens_of(4, uid * 10), uid)
    events = cache.events()
    assert len(events) == 4096
    assert events[-1][:3] == ("stored", 0, 1)


def test_thousands_of_requests_leave_no_drift() -> None:
    cache = paged(64, 40, windows=(0, 6))
    shared = tokens_of(20)
    for uid in range(1, 2001):
        own = tokens_of(10, 1000 + uid * 20)
        tokens = [tokens_of(30), [*shared, *own], own][uid % 3]
        serve(cache, uid, tokens, uid)
        if uid % 100 == 0:
            for one in cache.usage():
                assert one.free + one.evictable == one.total
    assert cache.check_integrity() == []
    for pool, pages in enumerate((64, 40)):
        cache.evict(pool, pages)
        assert cache.usage()[pool].free == pages


def spoil_holders(cache: Paged) -> None:
    cache.pools[0].holders[cache.requests[1].groups[0][0]] += 1


def spoil_table(cache: Paged) -> None:
    cache.requests[1].groups[0][2] = cache.requests[1].groups[0][1]


def spoil_lengths(cache: Paged) -> None:
    cache.requests[1].groups[1].pop()


def spoil_passed(cache: Paged) -> None:
    cache.requests[1].passed[1] = 2


def spoil_free(cache: Paged) -> None:
    cache.pools[0].free.append(cache.requests[1].groups[0][0])


def spoil_index(cache: Paged) -> None:
    cache.pools[0].index.popitem()


def spoil_content(cache: Paged) -> None:
    cache.requests[1].prefix.tokens[0] = 7
    cache.requests[1].prefix.memo.clear()


def spoil_lease(cache: Paged) -> None:
    cache.pools[0].leases[3] += 1


def spoil_fence(cache: Paged) -> None:
    cache.pools[0].newest[cache.pools[0].free[0]] = 99


def lose_a_page(cache: Paged) -> None:
    cache.pools[0].free.pop()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_holders, "counts 2 holders, 1 tables hold it"),
        (spoil_table, "holds a page twice"),
        (spoil_lengths, "different lengths, \\[3, 2\\]"),
        (spoil_passed, "gave up 2 pages after 9 tokens"),
        (spoil_free, "is free and in use"),
        (spoil_index, "cannot be found by its digest"),
        (spoil_content, "cached for other tokens"),
        (spoil_lease, "leases count"),
        (spoil_fence, "may still be touched"),
        (lose_a_page, "is lost"),
    ],
)
def test_integrity_names_what_is_broken(spoil: Callable[[Paged], None], words: str) -> None:
    cache = paged(8, 8, windows=(0, 6))
    open_request(cache, 1, tokens_of(9))
    cache.commit(1, 9, 1)
    assert cache.check_integrity() == []
    spoil(cache)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("; ".join(cache.check_integrity()))


@pytest.mark.parametrize("pages", [7, 8, 9, 15, 16, 17, 30])
def test_hits_of_any_length_are_found_to_the_page(pages: int) -> None:
    cache = paged(64)
    serve(cache, 1, tokens_of(4 * pages), 1)
    for cut in range(pages):
        other = tokens_of(4 * pages)
        other[4 * cut + 3] = 9
        assert ready(cache, other, limit=200) == 4 * cut
    assert ready(cache, tokens_of(4 * pages), limit=200) == 4 * pages
    assert ready(cache, tokens_of(4 * pages + 8), limit=200) == 4 * pages


def test_a_unit_is_found_although_one_of_its_pages_was_written_anew() -> None:
    cache = paged(64)
    serve(cache, 1, tokens_of(80), 1)
    pool, digests = cache.pools[0], cache.index.digests(Prefix(tokens_of(80)), 20)
    pool.unregister(pool.index[digests[10]])
    assert ready(cache, tokens_of(80), limit=80) == 40
    serve(cache, 2, tokens_of(80), 2)
    assert pool.index[digests[10]].writer == 2
    assert pool.index[digests[15]].writer == 1
    assert ready(cache, tokens_of(80), limit=80) == 80
    check_books(cache)


def test_pages_behind_one_that_is_too_old_are_not_found() -> None:
    seconds = [0.0]
    cache = Paged(PagedSettings(), make_spec(64, now=lambda: seconds[0]))
    any_age, young = CacheScope("n", 1), CacheScope("n", 1, ttl_s=50.0)
    serve(cache, 1, tokens_of(40), 1, scope=any_age)
    seconds[0] = 60.0
    serve(cache, 2, tokens_of(80), 2, scope=any_age)
    assert ready(cache, tokens_of(80), limit=80, scope=any_age) == 80
    assert ready(cache, tokens_of(80), limit=80, scope=young) == 0
