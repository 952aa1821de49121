"""The contract of key-value stores, as tests to inherit."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..contracts.kv_store import KVStore

PAGE = 4096
"""Bytes of a page in these tests."""


def digest(name: object) -> bytes:
    """Return the digest of a page that a test calls `name`."""
    return blake2b(str(name).encode(), digest_size=16).digest()


def content(name: object, page_bytes: int = PAGE) -> bytes:
    """Return its bytes: random, so that no compression makes them smaller."""
    return random.Random(str(name)).randbytes(page_bytes)


def fetched(store: KVStore, name: object, page_bytes: int = PAGE) -> bytes | None:
    """Return what the store gives for a page, or None on a miss."""
    into = bytearray(page_bytes)
    found = store.get(digest(name), memoryview(into))
    assert isinstance(found, bool)
    return bytes(into) if found else None


class KVStoreContract:
    """Subclass it, define `make` and `damage`, and run pytest.

    Attributes:
        overhead_bytes: What a store may count for each page beyond its bytes, such as a header.
    """

    overhead_bytes: int = 512

    def make(self, page_bytes: int, pages: int) -> KVStore:
        """Return an empty store with room for `pages` pages and for hardly any more."""
        raise NotImplementedError

    def damage(self, store: KVStore, digest: bytes) -> None:
        """Change a byte of a kept page behind the store's back."""
        raise NotImplementedError

    def filled(self, *names: object, pages: int = 16) -> KVStore:
        """Return a store that holds these pages."""
        store = self.make(PAGE, pages)
        for name in names:
            assert put(store, name)
        return store

    def test_what_was_put_comes_back(self) -> None:
        """To the bit, each under its own digest, as often as it is asked for."""
        store = self.filled("a", "b", "c")
        for name in ("b", "a", "c", "a"):
            assert fetched(store, name) == content(name)

    @pytest.mark.parametrize("page_bytes", [64, 4096, 786_432])
    def test_pages_have_any_size(self, page_bytes: int) -> None:
        """From a toy's to a large model's."""
        store = self.make(page_bytes, 4)
        assert store.put(digest("a"), memoryview(content("a", page_bytes)))
        assert fetched(store, "a", page_bytes) == content("a", page_bytes)

    def test_what_was_never_put_is_a_miss(self) -> None:
        """Not an error."""
        store = self.filled("a")
        assert fetched(store, "b") is None
        assert fetched(self.make(PAGE, 4), "a") is None

    def test_contains_counts_the_leading_digests(self) -> None:
        """A prefix with a hole ends at the hole."""
        store = self.filled("a", "b", "c")
        for names, held in [("abc", 3), ("abxc", 2), ("xabc", 0), ("", 0), ("cc", 2), ("a", 1)]:
            assert store.contains([digest(name) for name in names]) == held, names

    def test_the_page_is_the_callers_again_after_put(self) -> None:
        """It is a view of a buffer that the next page is written to."""
        store, buffer = self.make(PAGE, 4), bytearray(content("a"))
        assert store.put(digest("a"), memoryview(buffer))
        buffer[:] = bytes(PAGE)
        assert fetched(store, "a") == content("a")

    def test_what_get_filled_is_the_callers(self) -> None:
        """Writing to it does not change what the store holds."""
        store, into = self.filled("a"), bytearray(PAGE)
        assert store.get(digest("a"), memoryview(into))
        into[:] = bytes(PAGE)
        assert fetched(store, "a") == content("a")

    def test_a_page_put_twice_is_held_once(self) -> None:
        """The digest names the content, so a second copy is of no use."""
        store = self.filled("a")
        once = store.used_bytes()
        for _ in range(20):
            put(store, "a")
        assert store.used_bytes() <= once
        assert fetched(store, "a") == content("a")

    def test_used_bytes_follow_what_is_held(self) -> None:
        """Nothing at first; then at least the pages."""
        assert self.make(PAGE, 4).used_bytes() <= self.overhead_bytes
        assert self.filled(*range(8)).used_bytes() >= 8 * PAGE

    def test_it_never_holds_more_than_it_may(self) -> None:
        """It refuses or forgets, and is still of use afterwards."""
        store, most = self.make(PAGE, 8), 8 * (PAGE + self.overhead_bytes)
        for name in range(100):
            kept = put(store, name)
            assert store.used_bytes() <= most
            assert not kept or fetched(store, name) == content(name)
        held = [name for name in range(100) if fetched(store, name) is not None]
        assert 1 <= len(held) <= 8

    def test_what_is_held_and_what_is_found_agree(self) -> None:
        """Also when the store is full and pages come and go."""
        store, chance = self.make(PAGE, 8), random.Random(0)
        for _ in range(200):
            put(store, chance.randrange(20))
            name = chance.randrange(20)
            held = store.contains([digest(name)])
            found = fetched(store, name)
            assert (found is not None) == bool(held)
            assert found in {None, content(name)}

    def test_a_damaged_page_is_a_miss(self) -> None:
        """It is never returned; its neighbours are."""
        store = self.filled("a", "b", "c")
        self.damage(store, digest("b"))
        assert fetched(store, "b") is None
        assert fetched(store, "b") is None
        assert fetched(store, "a") == content("a")
        assert fetched(store, "c") == content("c")

    def test_a_damaged_page_can_be_put_again(self) -> None:
        """What `put` says it kept is good, whatever lay there before."""
        store = self.filled("a", "b")
        self.damage(store, digest("a"))
        assert fetched(store, "a") is None
        assert put(store, "a")
        assert fetched(store, "a") == content("a")

    def test_a_discarded_page_is_a_miss(self) -> None:
        """Until it is put again; discarding what is not there is fine."""
        store = self.filled("a", "b")
        for _ in range(2):
            store.discard(digest("a"))
        assert store.contains([digest("a")]) == 0
        assert fetched(store, "a") is None
        assert fetched(store, "b") == content("b")
        assert put(store, "a")
        assert fetched(store, "a") == content("a")

    def test_the_digests_are_those_of_what_is_held(self) -> None:
        """Each once; what was discarded or had to go is not among them."""
        store = self.filled("a", "b", "c", "a")
        store.discard(digest("b"))
        assert sorted(store.digests()) == sorted([digest("a"), digest("c")])
        for name in range(40):
            put(store, name)
        held = [name for name in ["a", "c", *range(40)] if store.contains([digest(name)])]
        assert sorted(store.digests()) == sorted(digest(name) for name in held)

    def test_counters_never_fall(self) -> None:
        """And are numbers; which there are is the store's affair."""
        store = self.make(PAGE, 4)
        before = store.counters()
        for name in range(12):
            put(store, name)
            fetched(store, name)
            fetched(store, f"not {name}")
            after = store.counters()
            assert before.keys() <= after.keys()
            assert all(before[one] <= after[one] for one in before)
            before = after

    def test_many_threads_may_use_it(self) -> None:
        """Nothing is raised, and nothing comes back under the wrong digest."""
        store = self.make(PAGE, 8)

        def work(seed: int) -> int:
            chance, hits = random.Random(seed), 0
            for _ in range(150):
                name = chance.randrange(12)
                if chance.random() < 0.4:
                    put(store, name)
                store.contains([digest(chance.randrange(12)) for _ in range(3)])
                found = fetched(store, name)
                assert found in {None, content(name)}
                hits += found is not None
            return hits

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(work, range(8))) > 0
        assert 0 <= store.used_bytes() <= 8 * (PAGE + self.overhead_bytes)


def put(store: KVStore, name: object) -> bool:
    """Put a page; return whether it was kept."""
    kept = store.put(digest(name), memoryview(content(name)))
    assert isinstance(kept, bool)
    return kept
