"""Least recently used: the entry that went unused for longest goes first.

Among entries that were last used at the same time, such as the pages of one request, the deepest
goes first: the others can serve without it, but not the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import LruSettings


class Lru(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: LruSettings) -> None:
        self.settings = settings

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`."""

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""

    def key(self, entry: Entry) -> tuple[float, int]:
        """See `EvictionPolicy.key`."""
        return entry.touched_s, -entry.depth
