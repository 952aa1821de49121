from __future__ import annotations

import math
import random
from typing import Any

import pytest

from camshaft.contracts.eviction import Entry, EvictionPolicy
from camshaft.plugins.cache.eviction_heap import EvictionHeap


class ByWorth(EvictionPolicy):
    """Evicts the lowest `memo["worth"]`, and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on_insert(self, entry: Entry) -> None:
        self.told.append(("insert", entry.memo["name"]))

    def on_touch(self, entry: Entry) -> None:
        self.told.append(("touch", entry.memo["name"]))

    def on_evict(self, entry: Entry) -> None:
        self.told.append(("evict", entry.memo["name"]))

    def key(self, entry: Entry) -> Any:
        return entry.memo["worth"]


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def entry(name: str, worth: float, expires_s: float = math.inf) -> Entry:
    return Entry(expires_s=expires_s, memo={"name": name, "worth": worth})


def heap_of(*entries: Entry, clock: Clock | None = None) -> EvictionHeap[Entry]:
    heap: EvictionHeap[Entry] = EvictionHeap(ByWorth(), clock or Clock())
    for one in entries:
        heap.insert(one)
    return heap


def drain(heap: EvictionHeap[Entry]) -> str:
    names = ""
    while (one := heap.pop()) is not None:
        names += one.memo["name"]
    return names


def test_the_smallest_key_goes_first_and_equals_in_order() -> None:
    heap = heap_of(entry("c", 2), entry("a", 1), entry("d", 2), entry("b", 1))
    assert len(heap) == 4
    assert drain(heap) == "abcd"
    assert len(heap) == 0


@pytest.mark.parametrize(("worth", "order"), [(9, "bca"), (2.5, "bac"), (0, "abc")])
def test_a_touched_entry_moves_either_way(worth: float, order: str) -> None:
    a = entry("a", 2)
    heap = heap_of(a, entry("b", 1), entry("c", 3))
    a.memo["worth"] = worth
    heap.touch(a)
    assert drain(heap) == order


def test_a_removed_entry_stays_until_it_returns() -> None:
    a = entry("a", 1)
    heap = heap_of(a, entry("b", 2))
    heap.remove(a)
    assert (len(heap), a in heap, heap.knows(a)) == (1, False, True)
    assert drain(heap) == "b"
    heap.insert(a)
    assert drain(heap) == "a"


def test_a_touch_while_in_use_counts_on_return() -> None:
    a = entry("a", 1)
    heap = heap_of(a, entry("b", 2))
    heap.remove(a)
    a.memo["worth"] = 3
    heap.touch(a)
    heap.insert(a)
    assert drain(heap) == "ba"


def test_the_policy_hears_of_each_event_once() -> None:
    a, b = entry("a", 1), entry("b", 2)
    heap = heap_of(a, b)
    heap.remove(a)
    heap.touch(a)
    heap.insert(a)
    heap.discard(b)
    heap.pop()
    policy = heap.policy
    assert isinstance(policy, ByWorth)
    assert policy.told == [
        ("insert", "a"),
        ("insert", "b"),
        ("touch", "a"),
        ("evict", "b"),
        ("evict", "a"),
    ]


def test_discarded_entries_never_come_out() -> None:
    a, b = entry("a", 1), entry("b", 2)
    heap = heap_of(a, b, entry("c", 3))
    heap.remove(b)
    heap.discard(a)
    heap.discard(b)
    assert len(heap) == 1
    assert drain(heap) == "c"
    assert not heap.knows(b)


def test_misuse_is_an_error() -> None:
    a = entry("a", 1)
    heap = heap_of(a)
    with pytest.raises(ValueError, match="evictable already"):
        heap.insert(a)
    heap.remove(a)
    with pytest.raises(KeyError):
        heap.remove(a)
    heap.discard(a)
    for call in (heap.discard, heap.touch, heap.remove):
        with pytest.raises(KeyError):
            call(a)


def test_expired_entries_go_first_by_their_time() -> None:
    clock = Clock()
    heap = heap_of(entry("a", 1), entry("b", 9, 20.0), entry("c", 8, 10.0), clock=clock)
    clock.seconds = 9.9
    assert heap.pop() is not None
    clock.seconds = 20.0
    assert drain(heap) == "cb"


def test_the_first_can_be_looked_at_and_evicted_whatever_the_time() -> None:
    clock = Clock()
    a, b = entry("a", 1), entry("b", 9, 10.0)
    heap = heap_of(a, b, clock=clock)
    assert (heap.first(), len(heap)) == (a, 2)
    clock.seconds = 10.0
    heap.evict(a)
    assert (heap.first(), heap.first(), len(heap)) == (b, b, 1)
    assert heap.pop() is b
    assert heap.first() is None
    with pytest.raises(KeyError):
        heap.evict(b)


def test_a_later_expiry_counts_from_the_next_touch() -> None:
    clock = Clock()
    a = entry("a", 9, 10.0)
    heap = heap_of(a, entry("b", 1), clock=clock)
    a.expires_s = 30.0
    heap.touch(a)
    clock.seconds = 20.0
    assert drain(heap) == "ba"


def test_an_entry_that_expires_in_use_goes_when_it_returns() -> None:
    clock = Clock()
    a = entry("a", 9, 10.0)
    heap = heap_of(a, entry("b", 1), entry("c", 2), clock=clock)
    heap.remove(a)
    clock.seconds = 15.0
    assert getattr(heap.pop(), "memo", {})["name"] == "b"
    heap.insert(a)
    assert drain(heap) == "ac"


def test_records_do_not_pile_up() -> None:
    entries = [entry(str(number), number, 1e9) for number in range(50)]
    heap = heap_of(*entries)
    chance = random.Random(0)
    for turn in range(5000):
        one = chance.choice(entries)
        heap.remove(one)
        one.memo["worth"] = chance.randrange(100)
        one.expires_s = 1e9 + turn
        heap.touch(one)
        heap.insert(one)
    assert len(heap._heap) < 200
    assert len(heap._timed) < 200


@pytest.mark.parametrize("seed", range(20))
def test_it_evicts_what_a_search_would(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    heap = heap_of(clock=clock)
    unused: list[Entry] = []
    used: list[Entry] = []
    for turn in range(600):
        clock.seconds += 1
        act = chance.random()
        if act < 0.35:
            expires = clock.seconds + chance.choice([math.inf, math.inf, 40.0])
            unused.append(entry(str(turn), chance.randrange(20), expires))
            heap.insert(unused[-1])
        elif act < 0.5 and unused:
            used.append(unused.pop(chance.randrange(len(unused))))
            heap.remove(used[-1])
        elif act < 0.6 and used:
            unused.append(used.pop(chance.randrange(len(used))))
            heap.insert(unused[-1])
        elif act < 0.75 and unused + used:
            one = chance.choice(unused + used)
            one.memo["worth"] = chance.randrange(20)
            heap.touch(one)
        elif act < 0.8 and unused + used:
            one = chance.choice(unused + used)
            (unused if one in unused else used).remove(one)
            heap.discard(one)
        elif unused:
            expired = [one for one in unused if one.expires_s <= clock.seconds]
            least = min(one.memo["worth"] for one in unused)
            gone = heap.pop()
            assert gone is not None
            assert gone in expired if expired else gone.memo["worth"] == least
            unused.remove(gone)
        assert len(heap) == len(unused)


def test_a_policy_is_told_whether_its_key_or_something_else_made_an_entry_go() -> None:
    class Teller(ByWorth):
        def on_discard(self, entry: Entry) -> None:
            self.told.append(("discard", entry.memo["name"]))

    policy, clock = Teller(), Clock()
    heap: EvictionHeap[Entry] = EvictionHeap(policy, clock)
    entries = [entry("a", 3, expires_s=5.0), entry("b", 1), entry("c", 2)]
    for one in entries:
        heap.insert(one)
    clock.seconds = 5.0
    assert drain(heap) == "abc"
    heap.insert(entries[1])
    heap.discard(entries[1])
    assert [what for what in policy.told if what[0] != "insert"] == [
        ("discard", "a"),
        ("evict", "b"),
        ("evict", "c"),
        ("discard", "b"),
    ]
