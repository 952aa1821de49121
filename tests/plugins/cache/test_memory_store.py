from __future__ import annotations

import threading

import numpy as np
import pytest

from camshaft.contracts.kv_store import StoreSpec, plain_memory
from camshaft.errors import CamshaftError
from camshaft.plugins.cache.components import MemorySettings
from camshaft.plugins.cache.stores.memory import MemoryStore
from camshaft.testing.kv_store import PAGE, content, digest, fetched, put


def memory(pages: int, host_memory=plain_memory) -> MemoryStore:
    return MemoryStore(MemorySettings(capacity=pages * PAGE), StoreSpec(PAGE, b"", host_memory))


def test_the_page_that_went_unused_for_longest_goes_first():
    store = memory(3)
    for name in "abc":
        put(store, name)
    fetched(store, "a")
    put(store, "c")
    put(store, "d")
    assert [store.contains([digest(name)]) for name in "abcd"] == [1, 0, 1, 1]
    assert store.counters()["evicted"] == 1


def test_memory_is_the_devices_and_is_taken_as_pages_come():
    asked = []

    def device(size):
        asked.append(size)
        return plain_memory(size)

    store = memory(2**14 + 3, device)
    assert asked == []
    put(store, "a")
    assert asked == [2**26]
    for name in range(2**14):
        store.put(digest(name), memoryview(bytes(PAGE)))
    assert asked == [2**26, 3 * PAGE]


def test_a_page_that_is_being_read_is_not_written_over(monkeypatch):
    store = memory(1)
    put(store, "a")
    copy, results = np.copyto, []

    def evict_first(target, source):
        monkeypatch.setattr(np, "copyto", copy)
        thread = threading.Thread(target=lambda: results.append(put(store, "b")))
        thread.start()
        thread.join()
        copy(target, source)

    monkeypatch.setattr(np, "copyto", evict_first)
    assert fetched(store, "a") == content("a")
    assert results == [False]
    assert put(store, "b")
    assert fetched(store, "b") == content("b")
    assert store.used_bytes() == PAGE


def test_pages_whose_size_is_no_multiple_of_a_word_are_checked_to_the_end():
    store = MemoryStore(MemorySettings(capacity=100), StoreSpec(13))
    store.put(b"odd", memoryview(bytes(range(13))))
    slot = store._index.use(b"odd")
    assert slot is not None
    slot.room[12] += np.uint8(1)
    assert not store.get(b"odd", memoryview(bytearray(13)))
    assert store.counters()["damaged"] == 1


def test_a_page_of_another_size_is_an_error_of_the_caller():
    with pytest.raises(ValueError, match="a page has 4096 bytes, this one 5"):
        memory(1).put(b"a", memoryview(b"short"))


def test_a_capacity_below_a_page_is_refused():
    with pytest.raises(CamshaftError, match="holds no page, which takes 4096"):
        MemoryStore(MemorySettings(capacity=4095), StoreSpec(PAGE))
