"""KVStore: a tier that keeps pages beyond the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def plain_memory(size: int) -> memoryview:
    """Return zeroed memory of the process."""
    return memoryview(bytearray(size))


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """What a store keeps.

    Attributes:
        page_bytes: Bytes of every page.
        identity: Digest of everything that makes pages useless to another engine: model, dtype,
            layout, page size. The stores of one engine's KV groups have the same.
        host_memory: Gives as many bytes of memory as it is asked for, in which the device copies
            fastest: page-locked where that helps. May be called from any thread.
    """

    page_bytes: int
    identity: bytes = b""
    host_memory: Callable[[int], memoryview] = plain_memory


class KVStore(ABC):
    """Bytes by digest. Constructed as `Store(settings, spec)`, where it may do slow I/O and raise.

    After that it is called from several threads at once, none of which is the loop's, except for
    `contains`, `digests`, `used_bytes` and `counters`, which the loop may call: they never wait for
    I/O.

    A digest names content, model, dtype, page size, adapter and salt at once. A damaged or foreign
    entry is a miss, never an error. A full or failing store refuses writes and counts them.
    """

    @abstractmethod
    def contains(self, digests: Sequence[bytes]) -> int:
        """Return how many leading digests are held. Fast; no I/O beyond an index."""

    @abstractmethod
    def put(self, digest: bytes, page: memoryview) -> bool:
        """Keep a page of `page_bytes` bytes. Returns False when it was not kept."""

    @abstractmethod
    def get(self, digest: bytes, into: memoryview) -> bool:
        """Fill `into` with a page, verified. Returns False on a miss, with anything in `into`."""

    @abstractmethod
    def discard(self, digest: bytes) -> None:
        """Forget a page, which turned out to be wrong or out of date; none is fine."""

    @abstractmethod
    def digests(self) -> list[bytes]:
        """Return the digests of all pages held, in any order. No I/O beyond an index."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Return the bytes held."""

    def counters(self) -> dict[str, float]:
        """Return what happened so far by name, for metrics; values never fall. None by default."""
        return {}

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Give back files, locks and connections. No other call is running or follows."""
