"""First in, first out: the entry that has been cached for longest goes first, used or not.

The baseline of every comparison (Belady, "A study of replacement algorithms for a virtual-storage
computer", IBM Systems Journal 5(2), 1966): it knows nothing of use. An entry comes in when it
becomes unused for the first time; of those that came together the deepest goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import FifoSettings


class Fifo(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: FifoSettings) -> None:
        self.settings = settings

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`."""
        entry.memo["came_s"] = entry.touched_s

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""

    def key(self, entry: Entry) -> tuple[float, int]:
        """See `EvictionPolicy.key`."""
        return entry.memo["came_s"], -entry.depth
