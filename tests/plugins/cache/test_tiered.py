"""The manager with tiers, played by a model core: what goes down, what comes up, what does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from camshaft.component import Chosen
from camshaft.contracts.cache import CacheSpec, GroupSpec, Prefix, Wait
from camshaft.contracts.kv_store import KVStore
from camshaft.contracts.moves import Moved
from camshaft.errors import CamshaftError
from camshaft.plugins.cache.components import TieredSettings
from camshaft.plugins.cache.stores.memory import MemoryStore
from camshaft.plugins.cache.tiered.manager import Tiered
from camshaft.request import EVERYWHERE, CacheScope
from camshaft.testing.cache_core import ModelCore
from camshaft.testing.cache_driver import make_spec, tokens_of
from camshaft.testing.cache_tiers import Tiers
from tests.plugins.cache.tiers import chosen, files, memory, tiered

UNIT = 64
"""Bytes of the pages of `make_spec`, of 4 tokens."""


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Play:
    """A core with a manager with tiers, on a pool of 8 pages."""

    def __init__(
        self,
        *stores: Chosen,
        pages: tuple[int, ...] = (8,),
        windows: tuple[int, ...] = (),
        page_tokens: int = 4,
        identity: bytes = b"model",
        below: Tiers | None = None,
        **more: Any,
    ) -> None:
        self.clock, below = Clock(), below or Tiers()
        spec = make_spec(*pages, windows=windows, now=self.clock, identity=identity)
        spec = replace(
            spec,
            page_tokens=page_tokens,
            tray=below.tray,
            post=lambda one: below.posted.append(one),
        )
        self.cache = tiered(spec, *stores, **more)
        self.core = ModelCore(self.cache, spec, Counter(), tiers=below)

    def settle(self) -> None:
        """Let everything in the background come to its end."""
        for _ in range(4):
            self.core.push()
            self.core.poll(100)
            self.cache.below.poll()

    def serve(
        self, tokens: list[int], *, salt: str = "", scope: CacheScope = EVERYWHERE, **end: Any
    ) -> int:
        """Run a request to its end; return how many tokens were ready when it began."""
        request = self.core.arrive(Prefix(list(tokens), salt, scope=scope))
        while not self.core.admit(request, 100):
            assert request.transfer, "it gets no pages"
            self.core.poll(100)
            assert not self.cache.is_coming(request.transfer)
            request.transfer = 0
        ready = request.computed
        self.core.launch([(request, 100)], token=9)
        self.core.settle()
        self.core.end(request, **end)
        self.settle()
        return ready

    def empty(self) -> None:
        """Drop what is cached on the device."""
        self.core.evict(0, self.cache.usage()[0].evictable)

    def counted(self, name: str) -> float:
        return self.cache.counters()[name]

    def check(self) -> None:
        self.core.check_books()
        self.core.finish()


A, B, C, D = (tokens_of(17, first) for first in (100, 200, 300, 400))
"""Prompts of 4 full pages."""


@pytest.mark.parametrize("over", ["paged", "radix"])
def test_what_was_evicted_comes_back_from_the_host(over: str) -> None:
    play = Play(over=over)
    play.serve(A)
    play.empty()
    assert play.serve(A) == 16
    assert play.counted("hit_tokens_memory") == 16
    assert play.counted("loaded_pages") == 4
    play.check()


def test_clearing_empties_the_device_and_all_tiers(tmp_path: Path) -> None:
    play = Play(memory(), files(tmp_path))
    for one in (A, B):
        play.serve(one)
    held = [tier.store.used_bytes() for tier in play.cache.below.tiers]
    assert min(held) > 0
    assert play.cache.clear() == 7
    play.settle()
    assert [tier.store.used_bytes() for tier in play.cache.below.tiers] == [0, 0]
    assert [play.serve(one) for one in (A, B)] == [0, 0]
    play.check()


def test_clearing_the_device_alone_leaves_tiers_as_they_are() -> None:
    play = Play()
    play.serve(A)
    assert play.cache.clear(tiers=False) == 4
    assert play.serve(A) == 16
    play.check()


def test_what_is_on_its_way_when_tiers_are_cleared_does_not_arrive() -> None:
    play = Play()
    request = play.core.arrive(Prefix(list(A)))
    assert play.core.admit(request, 100)
    play.core.launch([(request, 100)], token=9)
    play.core.settle()
    play.core.end(request)
    play.core.push()  # copies to the host have begun
    play.cache.clear()
    play.settle()
    assert play.serve(A) == 0
    play.empty()
    assert play.serve(A) == 16, "what was computed since is kept"
    play.check()


def test_a_load_that_is_under_way_when_tiers_are_cleared_is_given_up() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    request = play.core.arrive(Prefix(list(A)))
    assert not play.core.admit(request, 100)
    play.core.poll(100)  # fetched
    play.cache.clear()
    play.settle()
    assert not play.cache.is_coming(request.transfer)
    request.transfer = 0
    assert play.core.admit(request, 100)
    assert request.computed == 0
    play.check()


def test_what_is_on_the_device_is_not_loaded() -> None:
    play = Play()
    assert [play.serve(one) for one in (A, A, A)] == [0, 16, 16]
    assert (play.counted("hit_tokens_device"), play.counted("hit_tokens_memory")) == (32, 0)
    assert play.counted("exported_pages") == 4


def test_a_hit_goes_on_from_the_device_to_the_tier() -> None:
    play = Play()
    play.serve(A)
    play.core.evict(0, 2)  # the deepest of the 4 pages go first
    assert play.serve(A) == 16
    assert (play.counted("hit_tokens_device"), play.counted("hit_tokens_memory")) == (8, 8)
    play.check()


def test_a_waiting_request_holds_no_pages_while_it_loads() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    prefix = Prefix(list(A))
    hit = play.cache.match(prefix, 16)
    assert (hit.ready, hit.loading) == (0, 16)
    before = play.cache.usage()
    answer = play.cache.allocate(99, prefix, 8, hit)
    assert isinstance(answer, Wait)
    assert answer.ticket < 0
    assert play.cache.usage() == before
    epoch = play.cache.epoch
    assert not play.cache.is_coming(answer.ticket)
    assert play.cache.epoch > epoch
    assert play.cache.match(prefix, 16).ready == 16
    play.cache.withdraw(99)
    assert play.cache.match(prefix, 16).ready == 0
    play.check()


def test_windows_are_kept_and_loaded_whole() -> None:
    play = Play(pages=(8, 8), windows=(0, 5))
    assert [play.serve(one) for one in (A, B, C, A)] == [0, 0, 0, 16]
    play.check()


def test_pages_of_one_token_travel_together() -> None:
    play = Play(pages=(40,), page_tokens=1, over="radix", unit_tokens=8)
    play.serve(A)
    assert play.counted("exported_pages") == 16
    assert play.serve(tokens_of(38, 500)) == 0
    play.core.evict(0, 40)
    assert play.serve(A[:11]) == 8  # of the 10 that could be, whole units
    play.check()


def test_a_unit_that_the_device_has_in_part_is_loaded_into_pages_of_its_own() -> None:
    play = Play(pages=(40,), page_tokens=1, over="radix", unit_tokens=8)
    play.serve(A)
    play.core.evict(0, 40)
    play.serve(A[:12])
    assert play.serve([*A, 7]) == 16
    play.check()


def test_other_texts_salts_versions_and_models_find_nothing() -> None:
    play = Play()
    scope = CacheScope("news", 1)
    for one in (A, B, C):
        play.serve(one, scope=scope)
    assert play.serve([1, *A[1:]], scope=scope) == 0
    assert play.serve(A) == play.serve(A, salt="x", scope=scope) == 0
    assert play.serve(A, scope=CacheScope("news", 2)) == 0
    assert play.serve(B, scope=scope) == 0  # it is outdated now
    keys = [Play(identity=one).cache.below.units.identity for one in (b"model", b"other")]
    assert keys[0] != keys[1]


def test_pages_with_a_time_to_live_stay_on_the_device() -> None:
    play = Play()
    scope = CacheScope("news", 1, 60.0)
    play.serve(A, scope=scope)
    play.empty()
    assert play.counted("exported_pages") == 0
    assert play.serve(A, scope=CacheScope("news", 1)) == 0


def test_what_a_request_computed_wrongly_is_forgotten_with_what_builds_on_it() -> None:
    play = Play(pages=(20,))
    first = play.core.arrive(Prefix(list(A)))
    play.core.admit(first, 100)
    play.core.launch([(first, 16)], token=9)
    play.core.settle()
    play.settle()
    assert play.serve([*A[:16], *B]) == 16
    assert play.counted("exported_pages") == 5  # a tray: its own four, and one of what it built on
    play.core.end(first, forget=True)
    play.settle()
    play.core.evict(0, 20)
    assert play.cache.match(Prefix([*A[:16], *B]), 32).loading == 0
    assert play.serve(A) == 0
    assert play.cache.match(Prefix([*A[:16], *B]), 32).loading == 0  # though its beginning is back


def test_what_a_failed_step_wrote_is_not_kept() -> None:
    play = Play()
    request = play.core.arrive(Prefix(list(A)))
    play.core.admit(request, 100)
    play.core.launch([(request, 100)], token=9, fails=True)
    play.settle()
    play.core.settle()
    play.core.evict(0, 8)
    assert play.serve(A) == 0
    play.check()


def test_units_without_a_tray_are_dropped_and_counted() -> None:
    play = Play(staging=UNIT)  # 4 trays of a unit, of which one is for loads
    play.core.tiers.end_moves = lambda *_, **__: None  # type: ignore[method-assign]
    play.serve(A)
    assert play.counted("exports_dropped_pages") == 1
    assert play.counted("exported_pages") == 0


def test_an_export_that_fails_is_made_up_for_later() -> None:
    play = Play()
    end_moves = play.core.tiers.end_moves
    play.core.tiers.end_moves = lambda cache, most, **_: end_moves(cache, most, ok=False)  # type: ignore[method-assign]
    play.serve(A)
    assert play.counted("exported_pages") == 0
    play.core.tiers.end_moves = end_moves  # type: ignore[method-assign]
    play.serve(A)
    assert play.counted("exported_pages") == 4


def test_pages_that_a_load_did_not_fill_are_not_served() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    prefix = Prefix(list(A))
    answer = play.cache.allocate(99, prefix, 17, play.cache.match(prefix, 16))
    assert isinstance(answer, Wait)
    assert not play.cache.is_coming(answer.ticket)
    play.cache.allocate(99, prefix, 17, play.cache.match(prefix, 16))
    tickets = [one.ticket for one in play.cache.take_moves().loads]
    play.cache.free(99, 2, forget=True)
    play.cache.fence(2)
    play.cache.moved([Moved(one, ok=False) for one in tickets])
    assert play.cache.match(Prefix(list(A)), 16).ready == 0
    assert play.cache.usage()[0].free == 8
    play.check()


class Gated(MemoryStore):
    """Cannot find what a test names, by number of the call."""

    missing: frozenset[int] = frozenset()
    gets = 0

    def get(self, digest: bytes, into: memoryview) -> bool:
        self.gets += 1
        return self.gets - 1 not in self.missing and super().get(digest, into)


def gated(play: Play, *missing: int) -> None:
    store = play.cache.below.tiers[0].store
    assert isinstance(store, MemoryStore)
    store.__class__ = Gated
    store.missing = frozenset(missing)  # type: ignore[attr-defined]


def test_a_unit_that_is_missing_ends_a_load_before_it() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    gated(play, 2)
    assert play.serve(A) == 8
    assert (play.counted("loads_short"), play.counted("hit_tokens_memory")) == (1, 8)
    play.check()


def test_a_load_of_which_nothing_comes_is_computed() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    gated(play, *range(100))
    assert play.serve(A) == 0
    play.check()


def test_what_takes_too_long_is_computed() -> None:
    play = Play(patience_s=2.0)
    play.serve(A)
    play.empty()
    prefix = Prefix(list(A))
    poll, play.cache.below.tiers[0].poll = play.cache.below.tiers[0].poll, lambda: False  # type: ignore[method-assign]
    answer = play.cache.allocate(99, prefix, 8, play.cache.match(prefix, 16))
    assert isinstance(answer, Wait)
    play.clock.seconds += 1.9
    assert play.cache.is_coming(answer.ticket)
    play.clock.seconds += 0.2
    assert not play.cache.is_coming(answer.ticket)
    assert play.counted("loads_late") == 1
    assert play.cache.match(prefix, 16).ready == 0
    play.cache.withdraw(99)
    play.cache.below.tiers[0].poll = poll  # type: ignore[method-assign]
    play.cache.below.poll()
    play.check()


def test_the_next_tier_takes_what_the_first_has_no_room_for(tmp_path) -> None:
    play = Play(memory(4 * UNIT), files(tmp_path))
    assert [play.serve(one) for one in (A, B, C)] == [0, 0, 0]
    assert [play.serve(one) for one in (A, B, C)] == [16, 16, 16]
    assert play.counted("hit_tokens_files") >= 32
    play.check()


def test_what_came_from_the_second_tier_is_kept_in_the_first(tmp_path) -> None:
    play = Play(memory(4 * UNIT), files(tmp_path))
    for one in (A, B, C):
        play.serve(one)
    play.empty()
    play.serve(A)
    before = play.counted("hit_tokens_files")
    play.empty()
    assert play.serve(A) == 16
    assert play.counted("hit_tokens_files") == before


def test_units_go_down_when_they_have_settled_and_at_once_when_they_were_used(tmp_path) -> None:
    play = Play(memory(), files(tmp_path), settle_s=10.0)
    play.serve(A)
    play.serve(B)
    assert play.counted("files_stored") == 0
    play.core.evict(0, 8)
    play.serve(A)
    assert play.counted("files_stored") == 4
    play.clock.seconds += 11.0
    play.settle()
    assert play.counted("files_stored") == 8


def test_a_new_engine_finds_the_files_of_the_last(tmp_path) -> None:
    below = Tiers()  # which knows what pages hold
    play = Play(memory(), files(tmp_path), below=below, settle_s=1000.0)
    play.serve(A)
    assert play.counted("files_stored") == 0
    play.cache.close()
    again = Play(memory(), files(tmp_path), below=below)
    assert again.serve(A) == 16
    assert again.counted("hit_tokens_files") == 16
    other = Play(memory(), files(tmp_path), identity=b"other")
    assert other.serve(A) == 0


def crowded(play: Play, busy: bool = True) -> int:
    """Have A prefetched from files, beside 12 units in memory; return the uid that it is for."""
    for one in (A, B, C, D):
        play.serve(one)
    play.empty()
    for key in play.cache.below.units.keys(Prefix(list(A)), 4):
        play.cache.below.tiers[0].store.discard(key)
    if busy:
        play.cache.below.has_room_for = lambda units: False  # type: ignore[method-assign]
    play.cache.prefetch(99, Prefix(list(A)), 16)
    play.settle()
    return 99


def test_pages_of_waiting_requests_are_brought_to_the_first_tier(tmp_path) -> None:
    play = Play(memory(16 * UNIT), files(tmp_path))
    play.cache.withdraw(crowded(play))
    assert play.counted("prefetched_pages") == 3  # a quarter of what is there
    files_before = play.counted("hit_tokens_files")
    assert play.serve(A) == 16
    assert play.counted("hit_tokens_files") == files_before + 4
    assert (play.counted("prefetch_hit_pages"), play.counted("prefetch_wasted_pages")) == (3, 0)


def test_prefetched_pages_that_nobody_used_are_counted(tmp_path) -> None:
    play = Play(memory(16 * UNIT), files(tmp_path))
    play.cache.withdraw(crowded(play))
    for first in range(5):
        play.serve(tokens_of(17, 600 + 50 * first))
    assert (play.counted("prefetch_hit_pages"), play.counted("prefetch_wasted_pages")) == (0, 3)


def test_with_room_a_waiting_request_is_prefetched_into_trays(tmp_path) -> None:
    play = Play(memory(16 * UNIT), files(tmp_path))
    uid = crowded(play, busy=False)
    prefix = next(one.prefix for one in play.cache.below.loads.all())
    assert play.cache.match(prefix, 16).ready == 16
    play.cache.withdraw(uid)
    play.check()


def test_loads_are_not_longer_than_the_trays_for_them() -> None:
    play = Play(pages=(40,), staging=16 * UNIT)  # 8 trays of 2 units, 6 of them for loads
    long = tokens_of(80, 1000)
    play.serve(long)
    play.core.evict(0, 40)
    assert play.serve(long) == 48
    play.check()


class Timed(KVStore):
    """Has everything."""

    def contains(self, digests: Any) -> int:
        return len(digests)

    def put(self, digest: bytes, page: memoryview) -> bool:
        return True

    def get(self, digest: bytes, into: memoryview) -> bool:
        return True

    def discard(self, digest: bytes) -> None:
        pass

    def digests(self) -> list[bytes]:
        return []

    def used_bytes(self) -> int:
        return 0


@pytest.mark.parametrize(("rate", "loading"), [(1e6, 96), (1e2, 0)])
def test_what_is_sooner_computed_is_not_loaded(rate: float, loading: int) -> None:
    play = Play(pages=(60,), load="faster")
    play.cache.below.tiers[0].store = Timed()
    play.cache.below.tiers[0].measured(int(rate), 1.0, play.clock())  # of 1536 bytes
    prefix = Prefix(tokens_of(100, 2000))
    play.cache.allocate(1, prefix, 100)
    play.cache.commit(1, 100, 1)
    play.clock.seconds += 1.0  # 10 ms a token, of which there are 96
    play.cache.fence(1)
    assert play.cache.match(Prefix(tokens_of(100, 3000)), 99).loading == loading


def test_a_recipe_that_names_no_tier_gets_host_memory() -> None:
    spec = replace(make_spec(8), tray=Tiers().tray)
    cache = Tiered(TieredSettings(over=chosen("cache", "paged"), threads=0), spec)
    assert [tier.name for tier in cache.below.tiers] == ["memory"]
    cache.close()


def test_two_tiers_of_one_kind_have_names_of_their_own() -> None:
    spec = replace(make_spec(8), tray=Tiers().tray)
    assert [one.name for one in tiered(spec, memory(), memory()).below.tiers] == [
        "memory",
        "memory_2",
    ]


def test_an_executor_that_moves_no_pages_is_refused() -> None:
    with pytest.raises(CamshaftError, match="choose another cache, such as 'paged'"):
        tiered(make_spec(8))


def test_the_size_of_a_unit_follows_pages_and_groups() -> None:
    groups = (GroupSpec("full", 50, 0, (0,), 10), GroupSpec("full", 50, 0, (1,), 30))
    spec = CacheSpec(3, groups, b"", True, make_spec(1).eviction, lambda: 0.0, tray=Tiers().tray)
    units = tiered(spec, memory(10**6), unit_tokens=8).below.units
    assert (units.pages, units.tokens, units.bytes) == (3, 9, 120)


def test_what_turns_out_wrong_on_its_way_down_arrives_nowhere() -> None:
    play = Play(pages=(40,))
    first, second = (play.core.arrive(Prefix([*A, one])) for one in (1, 2))
    for request in (first, second):
        play.core.admit(request, 100)
        play.core.launch([(request, 100)], token=9)
        play.core.settle()
    play.core.end(second)
    play.core.push()  # what both have is being copied out now
    play.core.end(first, forget=True)
    play.settle()
    assert play.counted("memory_stored") == 0
    play.empty()
    assert play.serve([*A, 2]) == 0


def test_what_a_tier_has_lost_meanwhile_is_read_from_the_next(tmp_path) -> None:
    play = Play(memory(), files(tmp_path))
    play.serve(A)
    play.empty()
    gated(play, 1, 2)
    assert play.serve(A) == 16
    assert (play.counted("hit_tokens_memory"), play.counted("hit_tokens_files")) == (8, 8)


def test_a_load_waits_for_room_on_the_device_without_a_tray() -> None:
    play = Play(patience_s=2.0)
    play.serve(A)
    play.empty()
    big = play.core.arrive(Prefix(tokens_of(24, 700)))
    assert play.core.admit(big, 24)  # 6 of 8 pages
    prefix = Prefix(list(A))
    answer = play.cache.allocate(99, prefix, 16, play.cache.match(prefix, 16))
    assert isinstance(answer, Wait)
    for _ in range(3):
        play.clock.seconds += 1.0
        assert play.cache.is_coming(answer.ticket)
    assert play.cache.below.trays.for_loads == 0
    play.core.end(big)
    play.settle()
    assert not play.cache.is_coming(answer.ticket)
    assert play.cache.match(prefix, 16).ready == 16
    play.cache.withdraw(99)
    play.check()


def test_what_waits_for_pages_after_it_was_read_does_not_make_a_tier_slow() -> None:
    play = Play()
    play.serve(A)
    play.empty()
    prefix = Prefix(list(A))
    answer = play.cache.allocate(99, prefix, 17, play.cache.match(prefix, 16))
    assert isinstance(answer, Wait)
    assert not play.cache.is_coming(answer.ticket)
    play.clock.seconds += 10.0
    play.cache.allocate(99, prefix, 17, play.cache.match(prefix, 16))
    assert play.cache.below.tiers[0].rate(play.clock()) > 1e6
    play.core.push()
    play.cache.free(99, 2)
    play.cache.fence(2)
    play.settle()
    play.check()
