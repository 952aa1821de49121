"""KVStore: a tier that keeps pages beyond the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class KVStore(ABC):
    """Bytes by digest. Constructed as `Store(settings, page_bytes)`. Called from I/O threads.

    A digest names content, model, dtype, page size, adapter and salt at once. A damaged or foreign
    entry is a miss, never an error. A full or failing store refuses writes and counts them.
    """

    @abstractmethod
    def contains(self, digests: Sequence[bytes]) -> int:
        """Return how many leading digests are held. Fast; no I/O beyond an index."""

    @abstractmethod
    def put(self, digest: bytes, page: memoryview) -> bool:
        """Keep a page. Returns False when it was not kept."""

    @abstractmethod
    def get(self, digest: bytes, into: memoryview) -> bool:
        """Fill `into` with a page, verified. Returns False on a miss."""

    @abstractmethod
    def used_bytes(self) -> int:
        """Return the bytes held."""
