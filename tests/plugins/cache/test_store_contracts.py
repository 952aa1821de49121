from __future__ import annotations

import itertools

import numpy as np
import pytest

from camshaft.contracts.kv_store import KVStore, StoreSpec
from camshaft.plugins.cache.components import MemorySettings
from camshaft.plugins.cache.stores.files import FileStore
from camshaft.plugins.cache.stores.memory import MemoryStore
from camshaft.testing.kv_store import KVStoreContract
from tests.plugins.cache.stores import files


class TestFiles(KVStoreContract):
    @pytest.fixture(autouse=True)
    def _directories(self, tmp_path):
        self.directories = (tmp_path / str(number) for number in itertools.count())
        self.made: list[FileStore] = []
        yield
        for store in self.made:
            store.close()

    def make(self, page_bytes: int, pages: int) -> KVStore:
        self.made.append(files(next(self.directories), pages, page_bytes=page_bytes))
        return self.made[-1]

    def damage(self, store: KVStore, digest: bytes) -> None:
        assert isinstance(store, FileStore)
        path = store.folder.page(digest)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


class TestMemory(KVStoreContract):
    overhead_bytes = 0

    def make(self, page_bytes: int, pages: int) -> KVStore:
        return MemoryStore(MemorySettings(capacity=pages * page_bytes), StoreSpec(page_bytes))

    def damage(self, store: KVStore, digest: bytes) -> None:
        assert isinstance(store, MemoryStore)
        slot = store._index.use(digest)
        assert slot is not None
        slot.room[100] ^= np.uint8(1)
