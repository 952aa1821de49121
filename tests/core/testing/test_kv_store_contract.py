from __future__ import annotations

import sys
import threading
import time
import zlib

import pytest

from camshaft.contracts.kv_store import KVStore
from camshaft.testing.kv_store import KVStoreContract
from camshaft.testing.rejects import failures


class Memory(KVStore):
    """Pages with a checksum; the oldest goes first."""

    def __init__(self, page_bytes: int, pages: int) -> None:
        self.most = pages * page_bytes
        self.pages: dict[bytes, tuple[int, bytes]] = {}
        self.used = 0
        self.lock = threading.RLock()

    def contains(self, digests):
        with self.lock:
            found = [one in self.pages for one in digests]
        return found.index(False) if False in found else len(found)

    def put(self, digest, page):
        with self.lock:
            self.drop(digest)
            while self.pages and self.used + len(page) > self.most:
                self.drop(next(iter(self.pages)))
            self.keep(digest, page)
            return True

    def keep(self, digest, page):
        self.pages[digest] = (zlib.crc32(page), bytes(page))
        self.used += len(page)

    def drop(self, digest):
        if digest in self.pages:
            self.used -= len(self.pages.pop(digest)[1])

    def get(self, digest, into):
        with self.lock:
            check, page = self.pages.get(digest, (0, b""))
            if not page or zlib.crc32(page) != check:
                self.drop(digest)
                return False
            into[:] = page
            return True

    def discard(self, digest):
        with self.lock:
            self.drop(digest)

    def digests(self):
        with self.lock:
            return list(self.pages)

    def used_bytes(self):
        return self.used


def verdict(store: type[Memory]) -> list[str]:
    class Contract(KVStoreContract):
        def make(self, page_bytes: int, pages: int) -> KVStore:
            return store(page_bytes, pages)

        def damage(self, store: Memory, digest: bytes) -> None:  # type: ignore[override]
            check, page = store.pages[digest]
            store.pages[digest] = (check, page[:-1] + bytes([page[-1] ^ 1]))

    return failures(Contract)


def test_a_good_store_passes() -> None:
    assert verdict(Memory) == []


class Full(Memory):
    """Refuses what does not fit: as good as eviction."""

    def put(self, digest, page):
        with self.lock:
            if digest not in self.pages and self.used + len(page) > self.most:
                return False
            return super().put(digest, page)


def test_a_store_that_refuses_when_full_passes() -> None:
    assert verdict(Full) == []


class AllHeld(Memory):
    def contains(self, digests):
        return sum(one in self.pages for one in digests)


class KeepsTheView(Memory):
    def keep(self, digest, page):
        super().keep(digest, page)
        self.pages[digest] = (self.pages[digest][0], page)


class RaisesOnAMiss(Memory):
    def get(self, digest, into):
        self.pages[digest]
        return super().get(digest, into)


class Unbounded(Memory):
    def __init__(self, page_bytes, pages):
        super().__init__(page_bytes, 1000)


class CountsTwice(Memory):
    def drop(self, digest):
        self.pages.pop(digest, None)


class KeepsNothing(Memory):
    def put(self, digest, page):
        return False


class SaysItKept(Memory):
    """Refuses when full, and says otherwise."""

    def put(self, digest, page):
        if self.used + len(page) <= self.most:
            super().put(digest, page)
        return True


class Unverified(Memory):
    def get(self, digest, into):
        if digest not in self.pages:
            return False
        into[:] = self.pages[digest][1]
        return True


class RaisesOnDamage(Memory):
    def get(self, digest, into):
        check, page = self.pages.get(digest, (0, b""))
        if page and zlib.crc32(page) != check:
            raise OSError("checksum mismatch")
        return super().get(digest, into)


class HasItAlready(Memory):
    """Skips pages of which it has an entry, good or not."""

    def put(self, digest, page):
        return digest in self.pages or super().put(digest, page)

    def get(self, digest, into):
        check, page = self.pages.get(digest, (0, b""))
        if not page or zlib.crc32(page) != check:
            return False
        into[:] = page
        return True


class StaleIndex(Memory):
    """Forgets to take evicted pages out of its index."""

    def __init__(self, page_bytes, pages):
        super().__init__(page_bytes, pages)
        self.index: set[bytes] = set()

    def keep(self, digest, page):
        super().keep(digest, page)
        self.index.add(digest)

    def contains(self, digests):
        found = [one in self.index for one in digests]
        return found.index(False) if False in found else len(found)


class FirstBytes(Memory):
    """Digests are long; eight bits of them are not enough."""

    def put(self, digest, page):
        return super().put(digest[:1] * 16, page)

    def get(self, digest, into):
        return super().get(digest[:1] * 16, into)

    def contains(self, digests):
        return super().contains([one[:1] * 16 for one in digests])


class KeepsWhatIsDiscarded(Memory):
    def discard(self, digest):
        pass


class RaisesOnDiscard(Memory):
    def discard(self, digest):
        self.used -= len(self.pages.pop(digest)[1])


class ListsWhatItHad(Memory):
    """Names pages that are gone."""

    def __init__(self, page_bytes, pages):
        super().__init__(page_bytes, pages)
        self.had: set[bytes] = set()

    def keep(self, digest, page):
        super().keep(digest, page)
        self.had.add(digest)

    def digests(self):
        return list(self.had)


class CountsWhatIsHeld(Memory):
    def counters(self):
        return {"pages": len(self.pages), "room": self.most - self.used}


class OneBuffer(Memory):
    """Every thread assembles its page in the same buffer."""

    def __init__(self, page_bytes, pages):
        super().__init__(page_bytes, pages)
        self.buffer = bytearray(page_bytes)

    def get(self, digest, into):
        with self.lock:
            found = super().get(digest, memoryview(self.buffer))
        if found:
            time.sleep(0)
            into[:] = self.buffer
        return found


@pytest.mark.parametrize(
    ("store", "test"),
    [
        (AllHeld, "test_contains_counts_the_leading_digests"),
        (KeepsTheView, "test_the_page_is_the_callers_again_after_put"),
        (RaisesOnAMiss, "test_what_was_never_put_is_a_miss"),
        (Unbounded, "test_it_never_holds_more_than_it_may"),
        (CountsTwice, "test_a_page_put_twice_is_held_once"),
        (KeepsNothing, "test_what_was_put_comes_back"),
        (SaysItKept, "test_it_never_holds_more_than_it_may"),
        (Unverified, "test_a_damaged_page_is_a_miss"),
        (RaisesOnDamage, "test_a_damaged_page_is_a_miss"),
        (HasItAlready, "test_a_damaged_page_can_be_put_again"),
        (StaleIndex, "test_what_is_held_and_what_is_found_agree"),
        (FirstBytes, "test_what_is_held_and_what_is_found_agree"),
        (KeepsWhatIsDiscarded, "test_a_discarded_page_is_a_miss"),
        (RaisesOnDiscard, "test_a_discarded_page_is_a_miss"),
        (ListsWhatItHad, "test_the_digests_are_those_of_what_is_held"),
        (CountsWhatIsHeld, "test_counters_never_fall"),
        (OneBuffer, "test_many_threads_may_use_it"),
    ],
)
def test_a_store_that_breaks_a_promise_is_rejected(store: type[Memory], test: str) -> None:
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert test in verdict(store)
    finally:
        sys.setswitchinterval(switch)
