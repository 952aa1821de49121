from __future__ import annotations

from camshaft.contracts.eviction import Entry, EvictionPolicy
from camshaft.plugins.cache.components import LruSettings
from camshaft.plugins.cache.eviction_heap import EvictionHeap
from camshaft.plugins.cache.policies.lru import Lru
from camshaft.testing.eviction import EvictionPolicyContract


class TestContract(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return Lru(LruSettings())


def test_what_went_unused_for_longest_goes_first_and_of_these_the_deepest() -> None:
    heap: EvictionHeap[Entry] = EvictionHeap(Lru(LruSettings()), lambda: 0.0)
    for touched, depth in [(2.0, 0), (2.0, 32), (1.0, 0), (2.0, 16), (3.0, 64)]:
        heap.insert(Entry(touched_s=touched, depth=depth))
    gone = [heap.pop() for _ in range(5)]
    assert [(one.touched_s, one.depth) for one in gone if one] == [
        (1.0, 0),
        (2.0, 32),
        (2.0, 16),
        (2.0, 0),
        (3.0, 64),
    ]
