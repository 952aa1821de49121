"""Promises of a KV manager about sliding groups. Windows are 6 tokens here, pages 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from ..contracts.cache import NULL_PAGE
from .cache_driver import apply, check_books, make_spec, open_request, ready, serve, tokens_of

if TYPE_CHECKING:
    from ..contracts.cache import CacheSpec, KVManager

WINDOW = 6


class WindowPromises:
    """Part of `KVManagerContract`."""

    kinds: ClassVar[frozenset[str]] = frozenset({"full", "sliding"})

    def make(self, spec: CacheSpec) -> KVManager:
        """Return a new manager."""
        raise NotImplementedError

    def _sliding(self, *pages: int, prefix: bool = True) -> KVManager:
        """Return a manager of a full group and sliding ones; skip where it has none."""
        if "sliding" not in self.kinds:
            pytest.skip("this manager has no sliding groups")
        windows = (0, WINDOW, 1)[: len(pages)]
        return self.make(make_spec(*pages, windows=windows, prefix=prefix))

    def test_pages_that_the_window_has_passed_are_given_up(self) -> None:
        """After 9 tokens the next query sees tokens 4 to 9: page 0 is passed."""
        cache = self._sliding(8, 8)
        request = open_request(cache, 1, tokens_of(12))
        apply(cache.commit(1, 8, 1), request.tables)
        assert NULL_PAGE not in request.tables[1], "the query at 8 sees token 3, of page 0"
        apply(cache.commit(1, 9, 2), request.tables)
        assert request.tables[1][0] == NULL_PAGE, "the query at 9 sees nothing of page 0"
        assert NULL_PAGE not in [*request.tables[0], *request.tables[1][1:]]
        check_books(cache)

    def test_given_up_pages_wait_for_the_step(self) -> None:
        """It may still read them."""
        cache = self._sliding(8, 3, prefix=False)
        open_request(cache, 1, tokens_of(12))
        cache.commit(1, 12, 4)
        assert cache.usage()[1][1:] == (0, 0, 2, 1), "page 0 waits for step 4"
        cache.fence(4)
        assert cache.usage()[1][1:] == (1, 0, 2, 0)

    def test_a_long_request_runs_in_a_small_sliding_pool(self) -> None:
        """What it needs at once is window and step, not its length."""
        cache = self._sliding(16, 4)
        request = open_request(cache, 1, tokens_of(60), length=4)
        for step in range(1, 15):
            apply(cache.allocate(1, request.prefix, 4 * step), request.tables)
            first = max(0, 4 * step - 4 - WINDOW + 1) // 4
            assert NULL_PAGE not in request.tables[1][first:], f"step {step} reads page {first}"
            apply(cache.commit(1, 4 * step, step), request.tables)
            cache.fence(step)
        assert cache.usage()[1].in_use <= 2
        check_books(cache)

    def test_a_hit_brings_only_the_pages_in_the_window(self) -> None:
        """A query at 12 sees tokens 7 to 12: pages 1 and 2."""
        cache = self._sliding(8, 8)
        first = open_request(cache, 1, tokens_of(13))
        cache.commit(1, 13, 1)
        second = open_request(cache, 2, tokens_of(13))
        assert second.hit.ready == 12
        assert second.tables[0][:3] == first.tables[0][:3]
        assert second.tables[1][:3] == [NULL_PAGE, *first.tables[1][1:3]]
        check_books(cache)

    def test_a_hit_needs_only_the_pages_in_the_window(self) -> None:
        """That older ones are gone does not matter."""
        cache = self._sliding(12, 4)
        request = open_request(cache, 1, tokens_of(33), length=4)
        for step in range(1, 9):
            apply(cache.allocate(1, request.prefix, 4 * step), request.tables)
            cache.commit(1, 4 * step, step)
            cache.fence(step)
        cache.free(1, 8)
        assert ready(cache, tokens_of(33)) == 32
        second = open_request(cache, 2, tokens_of(33))
        assert second.tables[1][:6] == [NULL_PAGE] * 6
        assert NULL_PAGE not in second.tables[1][6:]
        check_books(cache)

    def test_a_hit_is_valid_in_all_groups_at_once(self) -> None:
        """A shorter prefix serves where the window of the longer one is gone."""
        cache = self._sliding(12, 12)
        serve(cache, 1, tokens_of(9), 1)
        serve(cache, 2, tokens_of(21), 2)
        assert ready(cache, tokens_of(21)) == 20
        cache.evict(1, 1)
        assert ready(cache, tokens_of(21)) < 20, "the sliding group has lost a page of the window"
        cache.evict(1, 12)
        assert ready(cache, tokens_of(21)) == 0, "the sliding group holds nothing"
        assert cache.usage()[0].evictable == 5, "the full group still does"

    def test_a_full_group_needs_every_page(self) -> None:
        """Also where the sliding one does not."""
        cache = self._sliding(12, 12)
        serve(cache, 1, tokens_of(21), 1)
        cache.evict(0, 12)
        assert ready(cache, tokens_of(21)) == 0

    def test_freeing_returns_what_is_left(self) -> None:
        """No page is freed twice, and none is lost."""
        cache = self._sliding(8, 8, 8, prefix=False)
        open_request(cache, 1, tokens_of(30))
        cache.commit(1, 30, 1)
        cache.free(1, 2)
        cache.fence(2)
        assert [one.free for one in cache.usage()] == [8, 8, 8]
        check_books(cache)
