"""The contract of eviction policies rejects policies that break one promise each."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from camshaft.contracts.eviction import Entry, EvictionPolicy
from camshaft.testing.eviction import EvictionPolicyContract, LeastRecent
from camshaft.testing.rejects import failures


class AsksTheClock(LeastRecent):
    def __init__(self) -> None:
        self.clock = count()

    def key(self, entry: Entry) -> Any:
        return next(self.clock) - entry.touched_s, 0


class RanksAgainstTheNewest(LeastRecent):
    def __init__(self) -> None:
        self.newest = 0.0

    def on_touch(self, entry: Entry) -> None:
        self.newest = entry.touched_s

    def key(self, entry: Entry) -> tuple[float, int]:
        return entry.touched_s - self.newest, -entry.depth


class SharesItsCounter(LeastRecent):
    touches = 0

    def on_insert(self, entry: Entry) -> None:
        SharesItsCounter.touches += 1

    def key(self, entry: Entry) -> tuple[float, int]:
        return entry.touched_s * SharesItsCounter.touches, -entry.depth


class CannotCompare(LeastRecent):
    def key(self, entry: Entry) -> Any:
        return {"touched": entry.touched_s}


class HasNoOrder(LeastRecent):
    def key(self, entry: Entry) -> Any:
        return frozenset({entry.touched_s})


class ShallowFirst(LeastRecent):
    def key(self, entry: Entry) -> tuple[float, int]:
        return entry.touched_s, entry.depth


class ForgetsWhatItEvicted(LeastRecent):
    def on_evict(self, entry: Entry) -> None:
        raise KeyError(entry.depth)


class LearnsFromWhatIsVoid(LeastRecent):
    lost = 0

    def on_discard(self, entry: Entry) -> None:
        self.lost += 1

    def key(self, entry: Entry) -> tuple[float, int]:
        return entry.touched_s * (-1) ** self.lost, -entry.depth


class KeepsForEver(LeastRecent):
    def on_insert(self, entry: Entry) -> None:
        entry.expires_s = float("inf")


class RenewsOnUse(LeastRecent):
    def on_touch(self, entry: Entry) -> None:
        entry.expires_s = entry.touched_s + 60.0


class NeverLetsGo(LeastRecent):
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def on_insert(self, entry: Entry) -> None:
        self.entries.append(entry)


FAULTS: dict[type[EvictionPolicy], str] = {
    AsksTheClock: "test_asking_for_a_key_does_not_change_it",
    RanksAgainstTheNewest: "test_a_key_changes_only_in_calls_for_its_own_entry",
    SharesItsCounter: "test_policies_do_not_share_state",
    CannotCompare: "test_any_two_keys_can_be_compared",
    HasNoOrder: "test_any_two_keys_can_be_compared",
    ShallowFirst: "test_of_equal_entries_the_deeper_does_not_stay_longer",
    LearnsFromWhatIsVoid: "test_a_key_changes_only_in_calls_for_its_own_entry",
    KeepsForEver: "test_an_expiry_is_never_put_off",
    RenewsOnUse: "test_an_expiry_is_never_put_off",
    NeverLetsGo: "test_what_is_gone_is_let_go",
    ForgetsWhatItEvicted: "test_the_lowest_key_goes_first_whatever_happened",
}


def contract_of(policy: type[EvictionPolicy]) -> type[EvictionPolicyContract]:
    class Contract(EvictionPolicyContract):
        def make(self) -> EvictionPolicy:
            return policy()

    return Contract


def test_a_sound_policy_passes() -> None:
    assert failures(contract_of(LeastRecent)) == []


@pytest.mark.parametrize("policy", FAULTS)
def test_each_fault_is_named_by_its_promise(policy: type[EvictionPolicy]) -> None:
    assert FAULTS[policy] in failures(contract_of(policy))
