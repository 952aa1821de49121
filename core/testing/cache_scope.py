"""Promises of a KV manager about namespaces, their versions, and pages that become too old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..request import CacheScope
from .cache_driver import check_books, make_spec, open_request, ready, serve, tokens_of
from .eviction import LeastRecent

if TYPE_CHECKING:
    from ..contracts.cache import CacheSpec, KVManager
    from ..contracts.eviction import Entry

OLD, NEW = CacheScope("news", 1), CacheScope("news", 2)


class _Clock:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class _Idle(LeastRecent):
    """Lets entries expire 10 seconds after their last use."""

    def on_insert(self, entry: Entry) -> None:
        entry.expires_s = min(entry.expires_s, entry.touched_s + 10.0)

    def on_touch(self, entry: Entry) -> None:
        self.on_insert(entry)


class ScopePromises:
    """Part of `KVManagerContract`."""

    def make(self, spec: CacheSpec) -> KVManager:
        """Return a new manager."""
        raise NotImplementedError

    def test_namespaces_and_versions_do_not_share(self) -> None:
        """Nor is one taken for a salt, an adapter or a token."""
        cache = self.make(make_spec(32))
        serve(cache, 1, tokens_of(9), 1, scope=OLD)
        assert ready(cache, tokens_of(9), scope=OLD) == 8
        assert ready(cache, tokens_of(9)) == 0
        assert ready(cache, tokens_of(9), salt="news") == 0
        assert ready(cache, tokens_of(9), adapter=1) == 0
        for other in (CacheScope("new", 1), CacheScope("news", 3), CacheScope("news\0", 1)):
            assert ready(cache, tokens_of(9), scope=other) == 0, f"{other} shares with {OLD}"

    def test_a_newer_version_makes_older_pages_unreachable(self) -> None:
        """Even for those who ask for the old version."""
        cache = self.make(make_spec(32))
        serve(cache, 1, tokens_of(9), 1, scope=OLD)
        before = cache.epoch
        open_request(cache, 2, tokens_of(5, 300), scope=NEW)
        assert cache.epoch != before, "what can be found has changed"
        assert ready(cache, tokens_of(9), scope=OLD) == 0
        assert ready(cache, tokens_of(9), scope=NEW) == 0
        cache.commit(2, 5, 2)
        assert ready(cache, tokens_of(5, 300), scope=NEW) == 4
        check_books(cache)

    def test_who_comes_late_with_an_old_version_leaves_nothing(self) -> None:
        """It is answered, and so is who was running already."""
        cache = self.make(make_spec(32))
        running = open_request(cache, 1, tokens_of(9, 500), scope=OLD)
        serve(cache, 2, tokens_of(9), 2, scope=NEW)
        cache.commit(1, 9, 3)
        late = serve(cache, 3, tokens_of(9), 3, scope=OLD)
        assert (running.hit.ready, late.hit.ready) == (0, 0)
        cache.free(1, 3)
        assert ready(cache, tokens_of(9), scope=OLD) == 0
        assert ready(cache, tokens_of(9, 500), scope=OLD) == 0
        assert ready(cache, tokens_of(9), scope=NEW) == 8
        usage = cache.usage()[0]
        assert (usage.free, usage.evictable) == (30, 2), "only the new version is cached"
        check_books(cache)

    def test_older_pages_are_evicted_first(self) -> None:
        """Before others that went unused for longer."""
        cache = self.make(make_spec(8))
        serve(cache, 1, tokens_of(12, 700), 1)
        serve(cache, 2, tokens_of(12), 2, scope=OLD)
        serve(cache, 3, tokens_of(3, 300), 3, scope=NEW)
        open_request(cache, 4, tokens_of(20, 500))
        assert ready(cache, tokens_of(12, 700)) == 8, "2 pages were free, 3 of the old version"
        assert cache.usage()[0].evictable == 3
        check_books(cache)

    def test_older_pages_in_use_are_not_taken(self) -> None:
        """Their request runs to its end."""
        cache = self.make(make_spec(8))
        request = open_request(cache, 1, tokens_of(16), scope=OLD)
        cache.commit(1, 16, 1)
        serve(cache, 2, tokens_of(4, 300), 2, scope=NEW)
        assert cache.evict(0, 8) == 1, "the new version has one page that is unused"
        other = open_request(cache, 3, tokens_of(16, 500))
        assert set(other.pages).isdisjoint(request.pages)
        check_books(cache)
        cache.free(1, 3)
        cache.fence(3)
        assert cache.usage()[0].in_use == 4
        check_books(cache)

    def test_versions_of_another_salt_do_not_count(self) -> None:
        """Or a tenant could empty the cache of another."""
        cache = self.make(make_spec(32))
        serve(cache, 1, tokens_of(9), 1, scope=OLD, salt="a")
        serve(cache, 2, tokens_of(9), 2, scope=NEW, salt="b")
        assert ready(cache, tokens_of(9), scope=OLD, salt="a") == 8
        assert ready(cache, tokens_of(9), scope=NEW, salt="a") == 0

    def test_a_version_counts_for_all_adapters(self) -> None:
        """It is the text that has changed."""
        cache = self.make(make_spec(32))
        serve(cache, 1, tokens_of(9), 1, scope=OLD, adapter=1)
        serve(cache, 2, tokens_of(9), 2, scope=NEW)
        assert ready(cache, tokens_of(9), scope=OLD, adapter=1) == 0

    def test_a_match_alone_does_not_count_as_seen(self) -> None:
        """It changes nothing."""
        cache = self.make(make_spec(32))
        serve(cache, 1, tokens_of(9), 1, scope=OLD)
        assert ready(cache, tokens_of(9), scope=NEW) == 0
        assert ready(cache, tokens_of(9), scope=OLD) == 8

    def test_pages_are_not_served_for_longer_than_their_writer_said(self) -> None:
        """However often they are used, to whomever."""
        clock = _Clock()
        cache = self.make(make_spec(32, now=clock))
        serve(cache, 1, tokens_of(9), 1, scope=CacheScope("news", 1, 60.0))
        for clock.seconds in (101.0, 159.5):
            assert serve(cache, 2, tokens_of(9), 2, scope=OLD).hit.ready == 8
        clock.seconds = 160.0
        assert ready(cache, tokens_of(9), scope=OLD) == 0
        check_books(cache)

    def test_who_wants_young_pages_is_served_no_others(self) -> None:
        """Even if their writer set no bound; what it computes instead serves everybody."""
        clock = _Clock()
        cache = self.make(make_spec(32, now=clock))
        young = CacheScope("news", 1, 30.0)
        serve(cache, 1, tokens_of(9), 1, scope=OLD)
        clock.seconds = 131.0
        assert ready(cache, tokens_of(9), scope=OLD) == 8
        assert serve(cache, 2, tokens_of(9), 2, scope=young).hit.ready == 0
        clock.seconds = 150.0
        assert ready(cache, tokens_of(9), scope=young) == 8, "19 seconds old"
        assert ready(cache, tokens_of(9), scope=OLD) == 8
        assert cache.usage()[0].evictable == 2, "pages that are too old gave way to their equals"
        check_books(cache)

    def test_pages_that_are_too_old_go_first(self) -> None:
        """Before others that went unused for longer."""
        clock = _Clock()
        cache = self.make(make_spec(4, now=clock))
        serve(cache, 1, tokens_of(8), 1)
        clock.seconds = 110.0
        serve(cache, 2, tokens_of(8, 300), 2, scope=CacheScope("news", 1, 20.0))
        clock.seconds = 130.0
        open_request(cache, 3, tokens_of(8, 500))
        assert ready(cache, tokens_of(8), limit=8) == 8

    def test_a_hit_may_be_adopted_although_time_passes(self) -> None:
        """Who was promised pages gets them."""
        clock = _Clock()
        cache = self.make(make_spec(8, now=clock))
        scope = CacheScope("news", 1, 60.0)
        serve(cache, 1, tokens_of(9), 1, scope=scope)
        clock.seconds = 159.0
        second = open_request(cache, 2, tokens_of(9), scope=scope)
        clock.seconds = 1000.0
        assert second.hit.ready == 8
        assert len(set(second.pages)) == 3
        check_books(cache)

    def test_what_a_policy_lets_expire_is_not_served(self) -> None:
        """But for pages in use: they are not idle."""
        clock = _Clock()
        cache = self.make(make_spec(16, now=clock, eviction=_Idle))
        serve(cache, 1, tokens_of(9), 1)
        serve(cache, 2, tokens_of(9, 300), 2)
        clock.seconds = 109.0
        open_request(cache, 3, tokens_of(9))
        clock.seconds = 115.0
        assert ready(cache, tokens_of(9, 300)) == 0, "unused for 15 seconds"
        assert ready(cache, tokens_of(9)) == 8, "in use"
        cache.free(3, 3)
        cache.fence(3)
        clock.seconds = 124.0
        assert ready(cache, tokens_of(9)) == 8, "unused for 9 seconds"
        clock.seconds = 125.0
        assert ready(cache, tokens_of(9)) == 0, "unused for 10 seconds"
        check_books(cache)
