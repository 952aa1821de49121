"""Pages in the host's memory: the tier between the device and the disk.

Memory is taken in slabs as pages come, page-locked where the device asks for it, and never given
back. A page is checked by the sum of its 64-bit words modulo 2^64, which costs a fraction of
copying it: that finds whatever wrote over it, which is all that can happen to a page here. Copies
go through NumPy, which lets other threads run meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.kv_store import KVStore
from camshaft.errors import CamshaftError

from .counts import StoreCounts
from .index import StoreIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.kv_store import StoreSpec

    from ..components import MemorySettings

_SLAB_BYTES = 2**26
COUNTERS = (
    "hits",
    "misses",
    "stored",
    "refused",
    "evicted",
    "discarded",
    "damaged",
    "read_bytes",
    "written_bytes",
)


@dataclass(slots=True, eq=False)
class _Slot:
    """Room for a page.

    Attributes:
        room: uint8 [page_bytes].
        total: Of the page in it.
        readers: Calls that copy from it.
        gone: Free as soon as nobody reads it.
    """

    room: NDArray[np.uint8]
    total: int = 0
    readers: int = 0
    gone: bool = False


class MemoryStore(KVStore):
    """See the module. The page that went unused for longest goes first."""

    def __init__(self, settings: MemorySettings, spec: StoreSpec) -> None:
        """Make an empty store.

        Raises:
            CamshaftError: The capacity is less than a page.
        """
        self.page_bytes = spec.page_bytes
        most = settings.capacity // spec.page_bytes
        if most < 1:
            raise CamshaftError(
                f"a capacity of {settings.capacity} bytes holds no page, which takes "
                f"{spec.page_bytes}; raise the capacity of kv_store 'memory'"
            )
        self.counts = StoreCounts("kv_store 'memory'", COUNTERS)
        self._host_memory = spec.host_memory
        self._index: StoreIndex[_Slot] = StoreIndex(most)
        self._free: list[_Slot] = []
        self._made = 0
        self._lock = threading.Lock()

    def contains(self, digests: Sequence[bytes]) -> int:
        """See `KVStore.contains`."""
        return self._index.leading(digests)

    def put(self, digest: bytes, page: memoryview) -> bool:
        """See `KVStore.put`. A page that is held is not copied again, but is now the newest."""
        source = self._array(page)
        if self._index.use(digest) is not None:
            return True
        slot = self._take()
        if slot is None:
            self.counts.add(refused=1)
            return False
        np.copyto(slot.room, source)
        slot.total = _total(slot.room)
        before = self._index.add(digest, slot)
        if before is not None:  # two threads put the same page
            self._retire(before)
        self.counts.add(stored=1, written_bytes=self.page_bytes)
        return True

    def get(self, digest: bytes, into: memoryview) -> bool:
        """See `KVStore.get`."""
        target = self._array(into)
        with self._lock:
            slot = self._index.use(digest)
            if slot is not None:
                slot.readers += 1
        if slot is None:
            self.counts.add(misses=1)
            return False
        np.copyto(target, slot.room)
        is_good = _total(target) == slot.total
        with self._lock:
            slot.readers -= 1
            if slot.gone and not slot.readers:
                self._free.append(slot)
        if not is_good:
            self.counts.fault("damaged", "a page is damaged and was removed")
            self.counts.add(misses=1)
            self._drop(digest)
            return False
        self.counts.add(hits=1, read_bytes=self.page_bytes)
        return True

    def discard(self, digest: bytes) -> None:
        """See `KVStore.discard`."""
        if self._drop(digest):
            self.counts.add(discarded=1)

    def digests(self) -> list[bytes]:
        """See `KVStore.digests`."""
        return self._index.digests()

    def used_bytes(self) -> int:
        """See `KVStore.used_bytes`."""
        return len(self._index) * self.page_bytes

    def counters(self) -> dict[str, float]:
        """See `KVStore.counters`."""
        return self.counts.all()

    def _array(self, page: memoryview) -> NDArray[np.uint8]:
        if page.nbytes != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, this one {page.nbytes}")
        return np.frombuffer(page, dtype=np.uint8)

    def _take(self) -> _Slot | None:
        """Return a slot that is in reserved room, or None, with nothing reserved."""
        victims = self._index.reserve()
        if victims is None:
            return None
        for _, victim in victims:
            self._retire(victim)
        self.counts.add(evicted=len(victims))
        with self._lock:
            if not self._free and self._made < self._index.most:
                self._grow()
            slot = self._free.pop() if self._free else None
        if slot is None:  # all that went are being read
            self._index.cancel()
            return None
        slot.gone = False
        return slot

    def _grow(self) -> None:
        """Take another slab, for as many pages as are still allowed."""
        # Pinned memory comes in powers of two: of a slab less than a page is left over.
        per_slab = max(1, _SLAB_BYTES // self.page_bytes)
        count = min(per_slab, self._index.most - self._made)
        slab = np.frombuffer(self._host_memory(count * self.page_bytes), dtype=np.uint8)
        for place in range(count):
            at = place * self.page_bytes
            self._free.append(_Slot(slab[at : at + self.page_bytes]))
        self._made += count

    def _retire(self, slot: _Slot) -> None:
        """Free a slot that is out of the index."""
        with self._lock:
            slot.gone = True
            if not slot.readers:
                self._free.append(slot)

    def _drop(self, digest: bytes) -> bool:
        slot = self._index.drop(digest)
        if slot is None:
            return False
        self._retire(slot)
        return True


def _total(page: NDArray[np.uint8]) -> int:
    """Return the sum of a page's words, and of the bytes behind the last whole one."""
    words = len(page) // 8 * 8
    with np.errstate(over="ignore"):
        total = page[:words].view(np.uint64).sum(dtype=np.uint64)
    return int(total) + int(page[words:].sum())
