from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from camshaft import CamshaftError
from camshaft.contracts.cache import Delta, GroupSpec, Hit, Prefix
from camshaft.plugins.cache.components import LruSettings, PagedSettings
from camshaft.plugins.cache.digests import PageDigests
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


def paged(
    *pages: int, windows: tuple[int, ...] = (), page_tokens: int = 4, unit_tokens: int = 256
) -> Paged:
    spec = make_spec(*pages, windows=windows)
    spec = replace(spec, page_tokens=page_tokens, eviction=lambda: Lru(LruSettings()))
    return Paged(PagedSettings(unit_tokens=unit_tokens), spec)


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
    cache.pools[0].pages.holders[cache.requests[1].groups[0][0]] += 1


def spoil_table(cache: Paged) -> None:
    cache.requests[1].groups[0][2] = cache.requests[1].groups[0][1]


def spoil_lengths(cache: Paged) -> None:
    cache.requests[1].groups[1].pop()


def spoil_passed(cache: Paged) -> None:
    cache.requests[1].passed[1] = 2


def spoil_free(cache: Paged) -> None:
    cache.pools[0].pages.free.append(cache.requests[1].groups[0][0])


def spoil_index(cache: Paged) -> None:
    cache.pools[0].index.units.popitem()


def spoil_run(cache: Paged) -> None:
    cache.pools[0].pages.leases[cache.requests[1].groups[0][0]] += 1


def spoil_content(cache: Paged) -> None:
    cache.requests[1].prefix.tokens[0] = 7
    cache.requests[1].prefix.memo.clear()


def spoil_lease(cache: Paged) -> None:
    cache.pools[0].pages.leases[3] += 1


def spoil_fence(cache: Paged) -> None:
    pages = cache.pools[0].pages
    pages.newest[pages.free[0]] = 99


def lose_a_page(cache: Paged) -> None:
    cache.pools[0].pages.free.pop()


def lose_count(cache: Paged) -> None:
    cache.pools[0].pages.counts[0] -= 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_holders, "counts 2 holders, 1 tables hold it"),
        (spoil_table, "holds a page twice"),
        (spoil_lengths, "different lengths, \\[3, 2\\]"),
        (spoil_passed, "gave up 2 pages after 9 tokens"),
        (spoil_free, "is held, and 1 times among the free ones"),
        (spoil_index, "cannot be found by its text"),
        (spoil_run, "is held, leased or fenced in part"),
        (spoil_content, "cached for other tokens"),
        (spoil_lease, "page 3 counts 1 leases, it has 0"),
        (spoil_fence, "is free, it should be fenced"),
        (lose_a_page, "is free, and 0 times among the free ones"),
        (lose_count, "it counts .* pages in its classes and has"),
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
    cache = paged(64, unit_tokens=32)
    serve(cache, 1, tokens_of(4 * pages), 1)
    for cut in range(pages):
        other = tokens_of(4 * pages)
        other[4 * cut + 3] = 9
        assert ready(cache, other, limit=200) == 4 * cut
    assert ready(cache, tokens_of(4 * pages), limit=200) == 4 * pages
    assert ready(cache, tokens_of(4 * pages + 8), limit=200) == 4 * pages


def test_a_unit_is_found_although_a_part_of_it_was_written_anew() -> None:
    cache = paged(64, unit_tokens=32)
    serve(cache, 1, tokens_of(80), 1)
    pool = cache.pools[0]
    second = next(run for run in pool.runs.values() if run.depth == 32)
    pool.split(second, 2)
    pool.unregister([pool.split(second, 1)])
    check_books(cache)
    assert ready(cache, tokens_of(80), limit=80) == 40
    serve(cache, 2, tokens_of(80), 2)
    writers = {(run.depth, run.pages): run.writer for run in pool.runs.values()}
    assert writers == {(0, 8): 1, (32, 2): 1, (40, 1): 2, (44, 5): 1, (64, 4): 1}
    assert ready(cache, tokens_of(80), limit=80) == 80
    check_books(cache)


def test_texts_that_part_inside_a_unit_share_what_comes_before() -> None:
    cache = paged(100, unit_tokens=64)
    serve(cache, 1, tokens_of(60), 1)
    for uid in range(2, 6):
        serve(cache, uid, [*tokens_of(4 * uid), *tokens_of(60, 1000 * uid)], uid)
    for uid in range(2, 6):
        text = [*tokens_of(4 * uid), *tokens_of(60, 1000 * uid)]
        assert ready(cache, text, limit=200) == len(text)
    assert ready(cache, tokens_of(60), limit=200) == 60
    assert cache.usage()[0].evictable == 75
    check_books(cache)


def test_part_of_a_run_is_held_while_the_rest_is_evicted() -> None:
    cache = paged(16)
    serve(cache, 1, tokens_of(40), 1)
    held = open_request(cache, 2, tokens_of(17))
    assert held.hit.ready == 16
    assert cache.evict(0, 16) == 6
    assert ready(cache, tokens_of(40)) == 16
    cache.free(2, 2)
    cache.fence(2)
    assert ready(cache, tokens_of(40)) == 16
    check_books(cache)


def test_to_find_known_text_hashes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, hashed = paged(300, page_tokens=1, unit_tokens=32), list[bytes]()
    serve(cache, 1, tokens_of(200), 1)
    monkeypatch.setattr(PageDigests, "_last", lambda self, parent, text: hashed.append(text))
    assert ready(cache, tokens_of(201)) == 200
    assert hashed == []


def test_what_a_request_leaves_is_one_entry_for_each_unit() -> None:
    cache = paged(300, page_tokens=1, unit_tokens=32)
    serve(cache, 1, tokens_of(200), 1)
    assert sorted(run.pages for run in cache.pools[0].evictable) == [8, *[32] * 6]
    assert cache.evict(0, 10) == 10
    assert sorted(run.pages for run in cache.pools[0].evictable) == [30, *[32] * 5]
    assert ready(cache, tokens_of(201)) == 190


def test_what_is_hashed_together_changes_no_hit() -> None:
    caches = [paged(40, unit_tokens=one) for one in (1, 8, 32, 256)]
    for uid in range(1, 40):
        text = [*tokens_of(4 * (uid % 7)), *tokens_of(13, 1000 * (uid % 5))]
        assert len({serve(cache, uid, text, uid).hit.ready for cache in caches}) == 1


def test_pages_behind_one_that_is_too_old_are_not_found() -> None:
    seconds = [0.0]
    cache = Paged(PagedSettings(), make_spec(64, now=lambda: seconds[0]))
    any_age, young = CacheScope("n", 1), CacheScope("n", 1, ttl_s=50.0)
    serve(cache, 1, tokens_of(40), 1, scope=any_age)
    seconds[0] = 60.0
    serve(cache, 2, tokens_of(80), 2, scope=any_age)
    assert ready(cache, tokens_of(80), limit=80, scope=any_age) == 80
    assert ready(cache, tokens_of(80), limit=80, scope=young) == 0


FORGOTTEN = """
from tests.plugins.cache.test_paged import open_request, paged, tokens_of
cache = paged(40)
open_request(cache, 1, tokens_of(80))
cache.commit(1, 80, 1)
cache.free(1, 0)
cache.revoke(1)
print(cache.pools[0].pages.free.tolist())
"""


def test_pages_that_are_forgotten_come_back_in_an_order_that_every_process_has() -> None:
    free = [
        subprocess.run(
            [sys.executable, "-c", FORGOTTEN],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert free[0] == free[1]
    assert len(free[0].split()) == 40
