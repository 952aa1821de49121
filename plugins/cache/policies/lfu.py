"""Least frequently used, with aging: what served few requests goes first.

Plain counts let an entry that was popular once stay for ever. So a count starts from the *age* of
the cache, which is the rank of the last entry that was evicted: what is new or in use keeps up with
it, and what fell out of use is overtaken.

Source: LFU with dynamic aging in Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating Content
Management Techniques for Web Proxy Caches", SIGMETRICS Performance Evaluation Review 27(4), 2000.
Ties are the paper's to choose; here the least recently used goes first, then the deepest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import LfuSettings


class Lfu(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: LfuSettings) -> None:
        self.settings = settings
        self._age = 0

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`. To be computed counts as a use."""
        entry.memo["rank"] = self._age + 1 + entry.hits

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""
        entry.memo["rank"] = self._age + 1 + entry.hits

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""
        if self.settings.aging:
            self._age = max(self._age, entry.memo["rank"])

    def on_discard(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_discard`. Tells nothing of what the others are worth."""

    def key(self, entry: Entry) -> tuple[int, float, int]:
        """See `EvictionPolicy.key`."""
        return entry.memo["rank"], entry.touched_s, -entry.depth
