"""What every eviction policy must keep to. Subclass `EvictionPolicyContract` in your tests.

class TestLfu(EvictionPolicyContract):
    def make(self):
        return Lfu(LfuSettings())
"""

from __future__ import annotations

import gc
import random
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable


class LeastRecent(EvictionPolicy):
    """The simplest policy that does, for tests that need one."""

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy`."""

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy`."""

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy`."""

    def key(self, entry: Entry) -> tuple[float, int]:
        """See `EvictionPolicy`."""
        return entry.touched_s, -entry.depth


class _Watched(Entry):
    """An entry that can be seen to be gone."""

    __slots__ = ("__weakref__",)


class _Clock:
    """Time that moves by a second each time it is asked for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


class _Pool:
    """What a cache does with a policy, by a search where a cache has a heap.

    Keys are those of the last insertion or touch, as in a heap.
    """

    def __init__(self, policy: EvictionPolicy, now: Callable[[], float]) -> None:
        self._policy = policy
        self._now = now
        self._keys: dict[Entry, Any] = {}
        self._evictable: set[Entry] = set()

    def insert(self, entry: Entry) -> None:
        """Make an entry evictable; the policy is told if it is new."""
        if entry not in self._keys:
            self._policy.on_insert(entry)
            self._keys[entry] = self._policy.key(entry)
        self._evictable.add(entry)

    def touch(self, entry: Entry) -> None:
        """Tell that an entry served a request."""
        self._policy.on_touch(entry)
        self._keys[entry] = self._policy.key(entry)

    def remove(self, entry: Entry) -> None:
        """Keep an entry from being evicted."""
        self._evictable.remove(entry)

    def discard(self, entry: Entry) -> None:
        """Drop an entry whose content is void."""
        self._drop(entry)
        self._policy.on_discard(entry)

    def pop(self) -> Entry | None:
        """Evict an entry that has expired, or else the one with the smallest key."""
        if not self._evictable:
            return None
        now = self._now()
        expired = next((one for one in self._evictable if one.expires_s <= now), None)
        if expired is not None:
            self.discard(expired)
            return expired
        smallest = min(
            (one for one in self._keys if one in self._evictable), key=self._keys.__getitem__
        )
        self._drop(smallest)
        self._policy.on_evict(smallest)
        return smallest

    def _drop(self, entry: Entry) -> None:
        del self._keys[entry]
        self._evictable.discard(entry)


class EvictionPolicyContract:
    """Invariants of an eviction policy. The tests need no fixtures."""

    def make(self) -> EvictionPolicy:
        """Return a new policy."""
        raise NotImplementedError

    def test_any_two_keys_can_be_compared(self) -> None:
        """Of two keys one is smaller, or they are equal."""
        policy, entries = self._filled()
        for one, other in combinations(entries, 2):
            a, b = policy.key(one), policy.key(other)
            assert [bool(a < b), bool(b < a), bool(a == b)].count(True) == 1, (
                f"{a!r} and {b!r} have no order"
            )

    def test_asking_for_a_key_does_not_change_it(self) -> None:
        """Keys are the same each time they are asked for."""
        policy, entries = self._filled()
        first = [policy.key(entry) for entry in entries]
        again = [policy.key(entry) for entry in reversed(entries)][::-1]
        assert first == again, f"keys {first} became {again}, although nothing happened"

    def test_a_key_changes_only_in_calls_for_its_own_entry(self) -> None:
        """Whatever happens to other entries, a key stays."""
        policy, entries = self._filled()
        clock, chance = _Clock(), random.Random(1)
        clock.seconds = 1000.0
        gone: list[Entry] = []
        for _ in range(100):
            entry = chance.choice(entries)
            others = [one for one in entries if one is not entry]
            before = [policy.key(one) for one in others]
            act = chance.random()
            if act < 0.8:
                _touch(policy, entry, clock.now())
            else:
                (policy.on_evict if act < 0.9 else policy.on_discard)(entry)
                gone.append(entry)
                entries[entries.index(entry)] = _inserted(policy, chance, clock.now())
            after = [policy.key(one) for one in others]
            assert before == after, f"keys {before} became {after}, although others were touched"

    def test_policies_do_not_share_state(self) -> None:
        """Each pool has a policy of its own."""
        policy, entries = self._filled()
        before = [policy.key(entry) for entry in entries]
        self._filled(seed=9)
        assert before == [policy.key(entry) for entry in entries], "another policy changed the keys"

    def test_of_equal_entries_the_deeper_does_not_stay_longer(self) -> None:
        """A page is of no use without the pages before it."""
        policy = self.make()
        shallow, deep = (Entry(depth=depth, created_s=5.0, touched_s=5.0) for depth in (0, 16))
        for now in (5.0, 9.0):
            for entry in (deep, shallow):
                if now == 5.0:
                    policy.on_insert(entry)
                else:
                    _touch(policy, entry, now)
            assert not policy.key(shallow) < policy.key(deep), "a page goes before those it carries"

    def test_an_expiry_is_never_put_off(self) -> None:
        """A policy may bring it forward; the content's own bound stands."""
        policy, chance = self.make(), random.Random(3)
        for now in range(1, 50):
            entry = _entry(chance, float(now))
            entry.expires_s = bound = now + chance.choice([0.5, 5.0, 1e9])
            policy.on_insert(entry)
            assert entry.expires_s <= bound, f"{bound} became {entry.expires_s} on insertion"
            entry.expires_s = bound
            _touch(policy, entry, now + 0.25)
            assert entry.expires_s <= bound, f"{bound} became {entry.expires_s} on a touch"

    def test_what_is_in_use_is_not_evicted(self) -> None:
        """Neither by its key, nor because it expired."""
        policy, clock, chance = self.make(), _Clock(), random.Random(4)
        pool = _Pool(policy, clock.now)
        entries = [_entry(chance, clock.now()) for _ in range(60)]
        for place, entry in enumerate(entries):
            entry.expires_s = clock.now() + 30.0 if place % 3 == 0 else inf
            pool.insert(entry)
        for entry in entries[::2]:
            pool.remove(entry)
        clock.seconds += 1e6
        gone = [pool.pop() for _ in range(31)]
        assert gone[30] is None, "more went than were unused"
        assert {id(one) for one in gone[:30]} == {id(one) for one in entries[1::2]}

    def test_what_is_gone_is_let_go(self) -> None:
        """A policy that keeps entries, or their names, grows for ever."""
        policy, clock, chance = self.make(), _Clock(), random.Random(5)
        pool = _Pool(policy, clock.now)
        entries = [_Watched(depth=16 * place, touched_s=clock.now()) for place in range(60)]
        chance.shuffle(entries)
        alive = WeakSet(entries)
        for entry in entries:
            pool.insert(entry)
        for entry in entries[::3]:
            pool.discard(entry)
        while pool.pop():
            pass
        del entry, entries, pool
        gc.collect()
        assert not alive, f"the policy still holds {len(alive)} of 60 entries"

    def test_the_lowest_key_goes_first_whatever_happened(self) -> None:
        """Keys that were asked for once, when an entry was inserted or touched, say who goes."""
        policy, clock, chance = self.make(), _Clock(), random.Random(2)
        pool = _Pool(policy, clock.now)
        unused: list[Entry] = []
        used: list[Entry] = []
        for _ in range(400):
            act = chance.random()
            if act < 0.4:
                unused.append(_entry(chance, clock.now()))
                pool.insert(unused[-1])
            elif act < 0.6 and unused:
                used.append(unused.pop(chance.randrange(len(unused))))
                pool.remove(used[-1])
            elif act < 0.8 and used:
                entry = used.pop(chance.randrange(len(used)))
                entry.hits, entry.touched_s = entry.hits + 1, clock.now()
                pool.touch(entry)
                pool.insert(entry)
                unused.append(entry)
            elif act < 0.85 and unused:
                pool.discard(unused.pop(chance.randrange(len(unused))))
            elif unused:
                self._pop(pool, policy, unused, clock)
        while unused:
            self._pop(pool, policy, unused, clock)
        assert pool.pop() is None, "an entry was evicted twice"

    @staticmethod
    def _pop(pool: _Pool, policy: EvictionPolicy, unused: list[Entry], clock: _Clock) -> None:
        keys = {entry: policy.key(entry) for entry in unused}
        may_go = [entry for entry in unused if entry.expires_s <= clock.seconds + 1]
        may_go = may_go or [one for one in unused if keys[one] == min(keys.values())]
        entry = pool.pop()
        assert entry in may_go, "the entry that went had neither the lowest key, nor expired"
        unused.remove(entry)

    def _filled(self, seed: int = 0) -> tuple[EvictionPolicy, list[Entry]]:
        policy, clock, chance = self.make(), _Clock(), random.Random(seed)
        entries = [_inserted(policy, chance, clock.now()) for _ in range(20)]
        for _ in range(20):
            _touch(policy, chance.choice(entries), clock.now())
        return policy, entries


def _entry(chance: random.Random, now: float) -> Entry:
    return Entry(
        pages=chance.randint(1, 4),
        depth=16 * chance.randint(0, 8),
        created_s=now,
        touched_s=now,
        hits=chance.choice([0, 0, 3]),
        priority=chance.randint(-1, 1),
        reach=16 * chance.randint(0, 64),
    )


def _inserted(policy: EvictionPolicy, chance: random.Random, now: float) -> Entry:
    entry = _entry(chance, now)
    policy.on_insert(entry)
    return entry


def _touch(policy: EvictionPolicy, entry: Entry, now: float) -> None:
    entry.hits += 1
    entry.touched_s = now
    policy.on_touch(entry)
