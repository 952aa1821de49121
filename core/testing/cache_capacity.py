"""Promises of a KV manager about space: what it grants, refuses, and takes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..contracts.cache import NULL_PAGE, Delta, NoSpace, Prefix, Wait
from .cache_driver import apply, check_books, make_spec, open_request, ready, serve, tokens_of

if TYPE_CHECKING:
    from ..contracts.cache import CacheSpec, KVManager


class CapacityPromises:
    """Part of `KVManagerContract`."""

    def make(self, spec: CacheSpec) -> KVManager:
        """Return a new manager."""
        raise NotImplementedError

    def test_a_new_manager_has_all_pages_free(self) -> None:
        """In every pool."""
        cache = self.make(make_spec(7, 3))
        assert [tuple(one) for one in cache.usage()] == [(7, 7, 0, 0, 0), (3, 3, 0, 0, 0)]
        check_books(cache)

    def test_every_position_gets_a_page_of_its_own(self) -> None:
        """9 tokens need 3 pages; two requests share none."""
        cache = self.make(make_spec(8))
        one, other = (open_request(cache, uid, tokens_of(9, uid)) for uid in (1, 500))
        assert len(one.pages) == len(other.pages) == 3, "9 tokens need 3 pages"
        assert len({*one.pages, *other.pages}) == 6, "two requests got the same page"
        assert {*one.pages, *other.pages} <= set(range(1, 9)), "there are pages 1 to 8"
        assert cache.usage()[0].in_use == 6

    def test_capacity_grows_by_whole_pages(self) -> None:
        """Nothing is new within a page."""
        cache = self.make(make_spec(8))
        request = open_request(cache, 1, tokens_of(5))
        assert cache.allocate(1, request.prefix, 8) == Delta(), "page 2 has room for 8 tokens"
        delta = cache.allocate(1, request.prefix, 9)
        assert isinstance(delta, Delta)
        assert [write[:2] for write in delta.writes] == [(0, 2)], "the third page is at index 2"
        assert cache.usage()[0].in_use == 3

    def test_a_refusal_says_how_many_pages_are_short(self) -> None:
        """Others hold them, so that only a victim helps."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(12))
        assert cache.allocate(2, Prefix(tokens_of(12)), 12) == NoSpace(pool=0, short=2)

    def test_a_refused_first_call_changes_nothing(self) -> None:
        """Neither pools nor the list of requests."""
        cache = self.make(make_spec(4, 2))
        before = cache.usage()
        assert cache.allocate(1, Prefix(tokens_of(12)), 12) == NoSpace(pool=1, short=1)
        assert cache.usage() == before, "a refusal took pages"
        with pytest.raises(LookupError):
            cache.free(1, 1)
        check_books(cache)

    def test_a_refused_growth_changes_nothing(self) -> None:
        """What the request has stays as it was."""
        cache = self.make(make_spec(6, 3))
        request = open_request(cache, 1, tokens_of(8))
        before = cache.usage()
        assert cache.allocate(1, request.prefix, 16) == NoSpace(pool=1, short=1)
        assert cache.usage() == before, "a refusal took pages"
        apply(cache.allocate(1, request.prefix, 12), request.tables)
        assert [len(table) for table in request.tables] == [3, 3]
        check_books(cache)

    def test_a_refusal_evicts_nothing(self) -> None:
        """Cached pages are worth more than a failure."""
        cache = self.make(make_spec(4))
        serve(cache, 1, tokens_of(9), 1)
        assert isinstance(cache.allocate(2, Prefix(tokens_of(24, 300)), 24), NoSpace)
        assert ready(cache, tokens_of(9)) == 8, "a refusal evicted cached pages"

    def test_freed_pages_wait_for_their_step(self) -> None:
        """`Wait` names a step after which there is space."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(8))
        open_request(cache, 2, tokens_of(8, 300))
        cache.free(1, 5)
        cache.free(2, 6)
        assert cache.usage()[0].pinned == 4, "freed pages are pinned until their step is complete"
        prefix = Prefix(tokens_of(12, 600))
        assert cache.allocate(3, prefix, 12) == Wait(6)
        assert cache.allocate(3, prefix, 8) == Wait(5), "step 5 suffices for 2 pages"
        cache.fence(5)
        assert isinstance(cache.allocate(3, prefix, 8), Delta), "step 5 is complete"
        check_books(cache)

    def test_a_fence_covers_earlier_steps(self) -> None:
        """Also those that were never fenced themselves, and frees that come after it."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(4))
        open_request(cache, 2, tokens_of(4, 300))
        cache.free(1, 3)
        cache.fence(7)
        assert cache.usage()[0].free == 3, "step 3 is complete once step 7 is"
        cache.free(2, 7)
        assert cache.usage()[0].free == 4, "step 7 is complete already"

    def test_cached_pages_do_not_change_hands_before_their_step(self) -> None:
        """A page that is cached when it is freed waits like any other."""
        cache = self.make(make_spec(2))
        request = open_request(cache, 1, tokens_of(8))
        cache.commit(1, 8, 3)
        cache.free(1, 3)
        cache.evict(0, 2)
        prefix = Prefix(tokens_of(8, 300))
        assert cache.allocate(2, prefix, 8) == Wait(3), f"{request.pages} wait for step 3"
        cache.fence(3)
        assert isinstance(cache.allocate(2, prefix, 8), Delta)
        check_books(cache)

    def test_a_hit_keeps_the_fence_of_the_first_user(self) -> None:
        """A page that two used is free after the later of their steps."""
        cache = self.make(make_spec(3))
        open_request(cache, 1, tokens_of(5))
        cache.commit(1, 5, 9)
        second = open_request(cache, 2, tokens_of(5))
        assert second.hit.ready == 4
        cache.free(1, 9)
        cache.free(2, 8)
        cache.fence(8)
        cache.evict(0, 3)
        assert isinstance(cache.allocate(3, Prefix(tokens_of(12, 300)), 12), Wait), (
            "step 9 of the first user is not complete"
        )

    def test_unused_cached_pages_make_room(self) -> None:
        """Nobody has to give way while pages are only cached."""
        cache = self.make(make_spec(4))
        serve(cache, 1, tokens_of(16), 1)
        assert cache.usage()[0].evictable == 4
        open_request(cache, 2, tokens_of(12, 300))
        assert cache.usage()[0].in_use == 3
        check_books(cache)

    def test_a_hit_is_not_evicted_to_make_room_for_itself(self) -> None:
        """The pages that are adopted stay, and others go."""
        cache = self.make(make_spec(4))
        first = serve(cache, 1, tokens_of(12), 1)
        request = open_request(cache, 2, [*tokens_of(8), *tokens_of(8, 300)])
        assert request.hit.ready == 8
        assert request.pages[:2] == first.pages[:2], "these pages hold the first 8 tokens"
        assert len(set(request.pages)) == 4, "one page serves two places"
        check_books(cache)

    def test_pages_that_a_hit_adopts_are_not_counted_as_room(self) -> None:
        """All pages are cached, the hit takes 2 of them, and 3 more are wanted."""
        cache = self.make(make_spec(4))
        serve(cache, 1, tokens_of(16), 1)
        prefix = Prefix([*tokens_of(8), *tokens_of(12, 300)])
        hit = cache.match(prefix, 19)
        before = cache.usage()
        assert cache.allocate(2, prefix, 20, hit) == NoSpace(pool=0, short=1)
        assert cache.usage() == before, "a refusal took pages"
        check_books(cache)

    def test_evict_says_how_many_pages_became_free(self) -> None:
        """Never more than there are."""
        cache = self.make(make_spec(6))
        serve(cache, 1, tokens_of(16), 1)
        assert [cache.evict(0, pages) for pages in (0, 1, 9, 9)] == [0, 1, 3, 0]
        assert cache.usage()[0].free == 6
        check_books(cache)

    def test_pages_in_use_are_not_evicted(self) -> None:
        """Whoever adopted them still needs them."""
        cache = self.make(make_spec(6))
        serve(cache, 1, tokens_of(8), 1)
        open_request(cache, 2, tokens_of(9))
        assert cache.evict(0, 6) == 0
        assert ready(cache, tokens_of(9)) == 8

    def test_shrink_returns_surplus_pages_behind_its_step(self) -> None:
        """And only those."""
        cache = self.make(make_spec(4))
        request = open_request(cache, 1, tokens_of(5), length=16)
        cache.shrink(1, 5, 3)
        assert cache.usage()[0][1:] == (0, 0, 2, 2), "2 pages wait for step 3"
        cache.shrink(1, 5, 3)
        cache.fence(3)
        assert cache.usage()[0][1:] == (2, 0, 2, 0)
        del request.pages[2:]
        apply(cache.allocate(1, request.prefix, 12), request.tables)
        assert len(set(request.pages)) == 3, "a page came back that the request still holds"
        check_books(cache)

    def test_capacity_that_no_step_has_touched_comes_back_at_once(self) -> None:
        """Step 0 is complete from the beginning, whatever is in flight."""
        cache = self.make(make_spec(4))
        request = open_request(cache, 1, tokens_of(5))
        cache.commit(1, 5, 7)
        apply(cache.allocate(1, request.prefix, 16), request.tables)
        cache.shrink(1, 9, 0)
        assert cache.usage()[0][1:] == (1, 0, 3, 0)
        check_books(cache)

    def test_freeing_twice_is_an_error(self) -> None:
        """And changes nothing."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(8))
        open_request(cache, 2, tokens_of(4, 300))
        cache.free(1, 1)
        before = cache.usage()
        with pytest.raises(LookupError):
            cache.free(1, 1)
        with pytest.raises(LookupError):
            cache.free(77, 1)
        assert cache.usage() == before
        check_books(cache)

    def test_a_name_may_return_after_it_was_freed(self) -> None:
        """A preempted request starts anew."""
        cache = self.make(make_spec(4))
        serve(cache, 1, tokens_of(9), 1)
        again = open_request(cache, 1, tokens_of(9))
        assert again.hit.ready == 8
        check_books(cache)

    def test_a_page_in_two_tables_counts_once(self) -> None:
        """In use is in use."""
        cache = self.make(make_spec(6))
        serve(cache, 1, tokens_of(8), 1)
        open_request(cache, 2, tokens_of(9))
        open_request(cache, 3, tokens_of(9))
        assert cache.usage()[0][1:] == (2, 0, 4, 0), "2 shared pages and 1 each"
        cache.free(2, 2)
        cache.fence(2)
        assert cache.usage()[0][1:] == (3, 0, 3, 0), "the shared pages are still in use"
        check_books(cache)

    def test_a_lease_outlives_request_and_fence(self) -> None:
        """Its pages are pinned until it is released."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(8))
        cache.free(1, 1, hold="transfer")
        cache.fence(1)
        assert cache.usage()[0][1:] == (2, 0, 0, 2)
        assert cache.allocate(2, Prefix(tokens_of(12, 300)), 12) == NoSpace(pool=0, short=1)
        cache.release("transfer")
        assert cache.usage()[0][1:] == (4, 0, 0, 0)
        with pytest.raises(LookupError):
            cache.release("transfer")
        check_books(cache)

    def test_a_fork_shares_full_pages_and_copies_the_rest(self) -> None:
        """Both can write on."""
        cache = self.make(make_spec(8))
        parent = open_request(cache, 1, tokens_of(6))
        cache.commit(1, 6, 1)
        tables: list[list[int]] = [[]]
        delta = cache.fork(1, 2, Prefix([*tokens_of(6), 7]), 6)
        apply(delta, tables)
        assert isinstance(delta, Delta)
        assert tables[0][0] == parent.pages[0], "the first page is full, and can be shared"
        assert tables[0][1] not in {NULL_PAGE, *parent.pages}, "both would write the second page"
        assert [tuple(copy) for copy in delta.copies] == [(0, parent.pages[1], tables[0][1])]
        assert cache.usage()[0].in_use == 3
        check_books(cache)

    def test_a_fork_at_the_end_of_a_page_copies_nothing(self) -> None:
        """There is nothing that both would write."""
        cache = self.make(make_spec(8))
        parent = open_request(cache, 1, tokens_of(8))
        tables: list[list[int]] = [[]]
        delta = cache.fork(1, 2, Prefix([*tokens_of(8), 7]), 8)
        apply(delta, tables)
        assert isinstance(delta, Delta)
        assert tables == parent.tables
        assert not delta.copies

    def test_forked_pages_live_as_long_as_either(self) -> None:
        """Freeing one leaves the other whole."""
        cache = self.make(make_spec(4))
        open_request(cache, 1, tokens_of(8))
        cache.fork(1, 2, Prefix([*tokens_of(8), 7]), 8)
        cache.free(1, 1)
        cache.fence(1)
        assert cache.usage()[0][1:] == (2, 0, 2, 0)
        cache.free(2, 2)
        cache.fence(2)
        assert cache.usage()[0][1:] == (4, 0, 0, 0)
        check_books(cache)

    def test_a_fork_without_space_changes_nothing(self) -> None:
        """The child does not exist."""
        cache = self.make(make_spec(2))
        open_request(cache, 1, tokens_of(6))
        before = cache.usage()
        assert cache.fork(1, 2, Prefix([*tokens_of(6), 7]), 6) == NoSpace(pool=0, short=1)
        assert cache.usage() == before
        with pytest.raises(LookupError):
            cache.free(2, 1)
        check_books(cache)
