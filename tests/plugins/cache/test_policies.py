"""Each eviction policy: what it must keep to, and the order of a small trace worked out by hand."""

from __future__ import annotations

import math

import pytest

from camshaft.contracts.eviction import Entry, EvictionPolicy
from camshaft.plugins.cache.components import (
    FifoSettings,
    GdsfSettings,
    LfuSettings,
    PrioritySettings,
    SlruSettings,
    TtlSettings,
)
from camshaft.plugins.cache.eviction_heap import EvictionHeap
from camshaft.plugins.cache.policies.fifo import Fifo
from camshaft.plugins.cache.policies.gdsf import Gdsf
from camshaft.plugins.cache.policies.lfu import Lfu
from camshaft.plugins.cache.policies.priority import Priority
from camshaft.plugins.cache.policies.slru import Slru
from camshaft.plugins.cache.policies.ttl import Ttl
from camshaft.testing.eviction import EvictionPolicyContract


class TestFifo(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Fifo(FifoSettings())


class TestLfu(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Lfu(LfuSettings())


class TestSlru(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Slru(SlruSettings())


class TestGdsf(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Gdsf(GdsfSettings(attention_tokens=64))


class TestPriority(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Priority(PrioritySettings())


class TestTtl(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Ttl(TtlSettings(idle_s=30.0))


class Trace:
    """A heap of entries by name, on a clock that a test sets."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.seconds = 0.0
        self.heap: EvictionHeap[Entry] = EvictionHeap(policy, lambda: self.seconds)
        self.entries: dict[str, Entry] = {}

    def add(self, names: str, at: float, **fields: int) -> Trace:
        for name in names:
            self.entries[name] = Entry(touched_s=at, memo={"name": name}, **fields)
            self.heap.insert(self.entries[name])
        return self

    def use(self, names: str, at: float) -> Trace:
        for name in names:
            entry = self.entries[name]
            self.heap.remove(entry)
            entry.hits, entry.touched_s, entry.expires_s = entry.hits + 1, at, math.inf
            self.heap.touch(entry)
            self.heap.insert(entry)
        return self

    def evict(self, count: int) -> str:
        gone = [self.heap.pop() for _ in range(count)]
        return "".join(one.memo["name"] for one in gone if one is not None)


def test_fifo_ignores_use_and_takes_the_deepest_of_those_that_came_together() -> None:
    trace = Trace(Fifo(FifoSettings())).add("a", 1).add("b", 2).add("c", 2, depth=16).add("d", 3)
    assert trace.use("ab", 9).evict(4) == "acbd"


def test_lfu_takes_the_least_used_and_of_these_the_least_recent() -> None:
    trace = Trace(Lfu(LfuSettings())).add("abc", 1).add("d", 2)
    assert trace.use("aab", 3).evict(4) == "cdba"


def test_lfu_lets_the_new_overtake_what_fell_out_of_use() -> None:
    # uses: a 1 + 3 = 4. b to d come and go with rank 1, 2, 3: the age is 3, and e and f rank 4
    # like a, which is the least recent of the three.
    trace = Trace(Lfu(LfuSettings())).add("a", 1).use("aaa", 2)
    gone = "".join(trace.add(name, at).evict(1) for at, name in enumerate("bcd", 3))
    assert gone == "bcd"
    assert trace.add("ef", 7).evict(3) == "aef"


def test_lfu_without_aging_keeps_what_was_popular_once() -> None:
    trace = Trace(Lfu(LfuSettings(aging=False))).add("a", 1).use("aaa", 2)
    assert "".join(trace.add(name, at).evict(1) for at, name in enumerate("bcdefg", 3)) == "bcdefg"


def test_lfu_does_not_age_by_what_became_void() -> None:
    trace = Trace(Lfu(LfuSettings())).add("abc", 1).use("aaaabb", 2)
    trace.heap.discard(trace.entries["a"])
    assert trace.add("d", 3).evict(3) == "cdb"


def test_slru_lets_a_flood_pass_by_what_was_used() -> None:
    trace = Trace(Slru(SlruSettings())).add("abcd", 1).use("ab", 2)
    flood = "".join(trace.add(name, at).evict(1) for at, name in enumerate("efghijklmnop", 3))
    assert flood == "cdefghijklmn"
    assert trace.evict(4) == "opab"


def test_slru_puts_what_was_protected_for_long_back_on_probation() -> None:
    # Half of 4 entries are protected. Two hits after its own, a stands just before e, which comes
    # then; b and c are protected still.
    trace = Trace(Slru(SlruSettings(protected=0.5))).add("abcd", 1)
    trace.use("a", 2).use("b", 3).use("c", 4)
    assert trace.add("e", 5).evict(1) == "d"
    assert trace.evict(4) == "aebc"


def test_gdsf_keeps_what_is_used_and_what_is_dear_to_compute() -> None:
    # cost 1 + reach / 200: a 1, b 2, c 1, d 1.5; times uses: a 3, b 2, c 1, d 4.5
    trace = Trace(Gdsf(GdsfSettings(attention_tokens=100)))
    trace.add("a", 1).add("b", 2, reach=200).add("c", 3).add("d", 4, reach=100)
    assert trace.use("aadd", 5).evict(4) == "cbad"


def test_gdsf_takes_the_deepest_page_of_a_sequence_first() -> None:
    trace = Trace(Gdsf(GdsfSettings()))
    for name, depth in [("a", 0), ("b", 16), ("c", 32)]:
        trace.add(name, 1, depth=depth, reach=48)
    assert trace.evict(3) == "cba"


def test_gdsf_lets_the_new_overtake_what_fell_out_of_use() -> None:
    trace = Trace(Gdsf(GdsfSettings())).add("a", 1).use("aaa", 2)
    assert "".join(trace.add(name, at).evict(1) for at, name in enumerate("bcd", 3)) == "bcd"
    assert trace.add("ef", 7).evict(3) == "aef"


def test_priority_takes_the_least_urgent_and_of_these_the_least_recent() -> None:
    trace = Trace(Priority(PrioritySettings()))
    trace.add("a", 1, priority=5).add("b", 2, priority=-1).add("c", 3).add("d", 4, priority=5)
    assert trace.use("a", 5).evict(4) == "dacb"


@pytest.mark.parametrize(("at", "order"), [(10.0, "cab"), (33.0, "cab"), (40.0, "cab")])
def test_ttl_goes_by_recency(at: float, order: str) -> None:
    trace = Trace(Ttl(TtlSettings(idle_s=30.0))).add("abc", 1).use("a", 2).use("b", 5)
    trace.seconds = at
    assert trace.evict(3) == order


def test_ttl_sets_the_end_from_the_last_use_and_never_puts_off_an_earlier_one() -> None:
    trace = Trace(Ttl(TtlSettings(idle_s=30.0))).add("a", 1)
    assert trace.entries["a"].expires_s == 31.0
    assert trace.use("a", 20).entries["a"].expires_s == 50.0
    bound = Entry(touched_s=1.0, expires_s=7.0)
    trace.heap.insert(bound)
    assert bound.expires_s == 7.0
