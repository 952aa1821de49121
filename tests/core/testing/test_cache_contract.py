"""The contract of KV managers rejects managers that break one promise each."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from camshaft.contracts.cache import (
    CacheSpec,
    Delta,
    Hit,
    KVManager,
    NoSpace,
    PoolUsage,
    Prefix,
    TableWrite,
    Wait,
)
from camshaft.plugins.cache.cached_run import CachedRun, RunsByText
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.digests import PageDigests
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.cache.pages import FREE
from camshaft.request import CacheScope
from camshaft.testing.cache import KVManagerContract
from camshaft.testing.rejects import contract_methods, failures

RANDOM = "test_random_use_leaves_every_request_its_own_keys"


class Sound(Paged):
    unit_tokens = 8

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(PagedSettings(unit_tokens=self.unit_tokens), spec)


class ForgetsFences(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        super().free(uid, 0, hold=hold, forget=forget)


class IgnoresSalt(Sound):
    class Digests(PageDigests):
        def root(self, prefix: Prefix) -> bytes:
            return super().root(Prefix([], adapter=prefix.adapter))

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        digests = self.Digests(spec.identity, spec.page_tokens, self.index._digests.unit)
        self.index._digests = self.index._lookup._digests = digests


class IgnoresAdapter(IgnoresSalt):
    class Digests(PageDigests):
        def root(self, prefix: Prefix) -> bytes:
            return super().root(Prefix([], prefix.salt))


class IgnoresVersions(IgnoresSalt):
    class Digests(PageDigests):
        def root(self, prefix: Prefix) -> bytes:
            scope = CacheScope(prefix.scope.namespace, 1)
            return super().root(replace(prefix, scope=scope))


class ServesOldVersions(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self.index._versions.is_outdated = lambda prefix: False  # type: ignore[method-assign]


class KeepsOldVersions(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        for pool in self.pools:
            pool.generations.outdate = lambda key, newest: None  # type: ignore[method-assign]


class MixesVersionsOfTenants(Sound):
    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        for salt in ("", "a", "b"):
            self.index.see(replace(prefix, salt=salt, memo={}), self.requests.values())
        return super()._open(uid, prefix, tokens, hit)


class ServesForEver(Sound):
    def match(self, prefix: Prefix, limit: int) -> Hit:
        for pool in self.pools:
            pool.timed = False
        return super().match(prefix, limit)


class IgnoresWhoIsAsking(Sound):
    def match(self, prefix: Prefix, limit: int) -> Hit:
        scope = CacheScope(prefix.scope.namespace, prefix.scope.version)
        return super().match(replace(prefix, scope=scope, memo={}), limit)


class ForgetsOnlyLater(Sound):
    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        before = self.epoch
        result = super()._open(uid, prefix, tokens, hit)
        self.epoch = before
        return result


class ComparesSums(Sound):
    class Runs(RunsByText):
        def walk(self, parent: bytes, text: bytes) -> list[tuple[CachedRun, int]]:
            return [
                (run, min(len(run.ids), len(text) // self.page_bytes))
                for run in self.units.get(parent, {}).values()
                if not run.first and sum(run.text[: len(text)]) == sum(text[: len(run.text)])
            ]

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        for pool in self.pools:
            pool.index = self.Runs(spec.page_tokens)


class HashesUnitsAlone(IgnoresSalt):
    unit_tokens = 1

    class Digests(PageDigests):
        def end(self, prefix: Prefix, unit: int) -> bytes:
            return self.root(prefix)


class SharesItsMemo(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self.index._digests._ends = "digests"
        self.index._digests._root = "root"


class CountsSharedPagesTwice(Sound):
    def usage(self) -> tuple[PoolUsage, ...]:
        held = sum(tables.pages for tables in self.requests.values())
        return tuple(one._replace(in_use=held) for one in super().usage())


class LosesPagesWhenItFails(Sound):
    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        result = super().allocate(uid, prefix, tokens, hit)
        if isinstance(result, NoSpace) and self.pools[0].pages.free:
            self.pools[0].pages.take(1, 0)
        return result


class IgnoresTheLimit(Sound):
    def match(self, prefix: Prefix, limit: int) -> Hit:
        return super().match(prefix, len(prefix.tokens))


class ForksWithoutACopy(Sound):
    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        size = self.spec.page_tokens
        super().fork(parent, child, prefix, at // size * size)
        tables, own = self.requests[child], self.requests[parent]
        for pool, mine, other in zip(self.pools, tables.groups, own.groups, strict=True):
            tail = other[at // size : -(-at // size)]
            pool.share(tail, child)
            mine.extend(tail)
        return Delta(tuple(TableWrite(place, 0, one) for place, one in enumerate(tables.groups)))


class NeverWaits(Sound):
    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        result = super().allocate(uid, prefix, tokens, hit)
        return NoSpace(0, 1) if isinstance(result, Wait) else result


class WaitsForTooLittle(Sound):
    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        result = super().allocate(uid, prefix, tokens, hit)
        return Wait(result.ticket - 1) if isinstance(result, Wait) else result


class FreesTwice(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        if uid in self.requests:
            super().free(uid, step, hold=hold, forget=forget)


class RevokesNothing(Sound):
    def revoke(self, step: int) -> None:
        pass


class ForgetsNothing(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        super().free(uid, step, hold=hold)


class IgnoresLeases(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        super().free(uid, step, forget=forget)

    def release(self, lease: str) -> None:
        pass


class CountsHitsAsRoom(Sound):
    def _lacking(self, count: int, adopted: tuple[array[int], ...]) -> Wait | NoSpace | None:
        return super()._lacking(count, self._nothing)


class NeverEvicts(Sound):
    def _lacking(self, count: int, adopted: tuple[array[int], ...]) -> Wait | NoSpace | None:
        full = any(count > len(pool.pages.free) for pool in self.pools)
        return NoSpace(0, 1) if full else None


class GivesUpTooEarly(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self._windows = self.index._lookup._windows = [max(0, one - 1) for one in self._windows]


class MatchesWithoutTheWindow(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self._windows = self.index._lookup._windows = [min(1, one) for one in self._windows]

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        self._windows = [group.window for group in self.spec.groups]
        delta = super().commit(uid, tokens, step)
        self._windows = [min(1, one) for one in self._windows]
        return delta


class NeverGivesUp(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        self._sliding = []


class ReusesAnyway(Sound):
    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(replace(spec, prefix=True))


class KeepsItsEpoch(Sound):
    def match(self, prefix: Prefix, limit: int) -> Hit:
        self.epoch = 0
        return super().match(prefix, limit)

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        result = super().allocate(uid, prefix, tokens, hit)
        self.epoch = 0
        return result


class RegistersPartialPages(Sound):
    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        known = len(self.requests[uid].prefix.tokens)
        return super().commit(uid, min(known, tokens + self.spec.page_tokens - 1), step)


class TrustsThoseWhoLeft(Sound):
    leaving = False

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        self.leaving = True
        super().free(uid, step, hold=hold, forget=forget)
        self.leaving = False

    def distrust(self, uid: int) -> None:
        if self.leaving:
            super().distrust(uid)


class KnowsOneLife(Sound):
    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        for run in self.pools[0].runs.values():
            if run.writer == uid:
                run.writer = -1
        return super()._open(uid, prefix, tokens, hit)


class ClearsNothing(Sound):
    def clear(self, *, tiers: bool = True) -> int:
        return 0


class HidesItsFaults(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        super().free(uid, step, hold=hold, forget=forget)
        self.pools[0].pages.counts[FREE] += 1


FAULTS: dict[type[Sound], str] = {
    ForgetsFences: "test_freed_pages_wait_for_their_step",
    IgnoresSalt: "test_salts_do_not_share",
    IgnoresAdapter: "test_adapters_do_not_share",
    IgnoresVersions: "test_namespaces_and_versions_do_not_share",
    ServesOldVersions: "test_a_newer_version_makes_older_pages_unreachable",
    KeepsOldVersions: "test_older_pages_are_evicted_first",
    MixesVersionsOfTenants: "test_versions_of_another_salt_do_not_count",
    ServesForEver: "test_pages_are_not_served_for_longer_than_their_writer_said",
    IgnoresWhoIsAsking: "test_who_wants_young_pages_is_served_no_others",
    ForgetsOnlyLater: "test_a_newer_version_makes_older_pages_unreachable",
    ComparesSums: "test_near_duplicates_do_not_collide",
    HashesUnitsAlone: "test_a_page_is_found_only_behind_the_same_pages",
    SharesItsMemo: "test_managers_of_different_identity_do_not_share_a_memo",
    CountsSharedPagesTwice: "test_a_page_in_two_tables_counts_once",
    LosesPagesWhenItFails: "test_a_refused_growth_changes_nothing",
    IgnoresTheLimit: "test_a_hit_never_exceeds_the_limit",
    ForksWithoutACopy: "test_a_fork_shares_full_pages_and_copies_the_rest",
    NeverWaits: "test_freed_pages_wait_for_their_step",
    WaitsForTooLittle: "test_freed_pages_wait_for_their_step",
    FreesTwice: "test_freeing_twice_is_an_error",
    RevokesNothing: "test_pages_of_a_failed_step_are_not_found",
    ForgetsNothing: "test_what_a_distrusted_request_wrote_is_not_found",
    IgnoresLeases: "test_a_lease_outlives_request_and_fence",
    CountsHitsAsRoom: "test_pages_that_a_hit_adopts_are_not_counted_as_room",
    NeverEvicts: "test_unused_cached_pages_make_room",
    GivesUpTooEarly: "test_a_hit_brings_only_the_pages_in_the_window",
    MatchesWithoutTheWindow: "test_a_hit_is_valid_in_all_groups_at_once",
    NeverGivesUp: "test_pages_that_the_window_has_passed_are_given_up",
    ReusesAnyway: "test_without_reuse_nothing_is_found",
    KeepsItsEpoch: "test_the_epoch_changes_with_what_can_be_found",
    RegistersPartialPages: "test_full_pages_are_found_once_they_are_committed",
    TrustsThoseWhoLeft: "test_a_request_may_turn_out_to_be_wrong_when_it_has_lost_its_pages",
    KnowsOneLife: "test_what_a_request_wrote_before_it_was_preempted_is_distrusted_too",
    ClearsNothing: "test_clearing_drops_all_that_nobody_uses",
    HidesItsFaults: "test_a_fence_covers_earlier_steps",
}


# Random use knows one manager, never frees twice, and does not ask how old a page is; and who gives
# up nothing, or too much, harms nobody; nor is anything cleared, or distrusted for what was written
# before a preemption.
NOT_AT_RANDOM = {
    SharesItsMemo, FreesTwice, NeverGivesUp, KeepsOldVersions, MixesVersionsOfTenants,
    ServesForEver, IgnoresWhoIsAsking, ForgetsOnlyLater, ClearsNothing, KnowsOneLife,
}  # fmt: skip


def contract_of(manager: type[Sound]) -> type[KVManagerContract]:
    class Contract(KVManagerContract):
        shrinks = False

        def make(self, spec: CacheSpec) -> KVManager:
            return manager(spec)

    return Contract


def test_a_sound_manager_passes() -> None:
    promises = set(contract_methods(KVManagerContract)) - {RANDOM}
    assert failures(contract_of(Sound), only=promises) == []


@pytest.mark.parametrize("manager", FAULTS)
def test_each_fault_is_named_by_its_promise(manager: type[Sound]) -> None:
    assert failures(contract_of(manager), only=[FAULTS[manager]]) == [FAULTS[manager]]


@pytest.mark.parametrize("manager", [one for one in FAULTS if one not in NOT_AT_RANDOM])
def test_random_use_finds_the_fault_too(manager: type[Sound]) -> None:
    assert failures(contract_of(manager), only=[RANDOM]) == [RANDOM]
