"""Priority: what only less urgent requests used goes first, and of that the least recently used.

An entry is as urgent as the most urgent request that wrote or used it, so that a prefix which a
background job computed first is not lost to those who wait for an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import PrioritySettings


class Priority(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: PrioritySettings) -> None:
        self.settings = settings

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`."""

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""

    def key(self, entry: Entry) -> tuple[int, float, int]:
        """See `EvictionPolicy.key`."""
        return -entry.priority, entry.touched_s, -entry.depth
