"""Time to live: an entry expires when it went unused for so many seconds.

An expired entry is never served, even if there is room for it, and goes before all others; those
that have not expired go by recency, and then the deepest first. So nothing that a request left
behind can be reused when it has been idle for longer than the setting. What is in use does not
expire by it. A request's own `ttl_s` counts from when a page was computed, and is the earlier bound
wherever it is shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import TtlSettings


class Ttl(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: TtlSettings) -> None:
        self.settings = settings

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`."""
        self._bound(entry)

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""
        self._bound(entry)

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""

    def key(self, entry: Entry) -> tuple[float, int]:
        """See `EvictionPolicy.key`."""
        return entry.touched_s, -entry.depth

    def _bound(self, entry: Entry) -> None:
        entry.expires_s = min(entry.expires_s, entry.touched_s + self.settings.idle_s)
