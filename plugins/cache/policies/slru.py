"""Segmented LRU: what served a request is protected from what never did.

New entries are on *probation*, where the least recently used goes first. An entry that serves a
request moves to the *protected* segment, from where it falls back to the front of probation when
too many others were protected after it. So a flood of prompts that are never asked again passes
through probation and leaves the rest alone.

Source: Karedla, Love and Wherry, "Caching Strategies to Improve Disk System Performance", IEEE
Computer 27(3), 1994. Departure: nobody moves an entry back. Time is counted in hits, and an entry
that is hit ranks as far ahead as the protected segment is long: when so many hits have passed, it
stands among those on probation just where it would have been put. The segment is bounded in hits,
that is by one entry for each; repeated hits of one entry count each time.

    hits     0 ........ now | now + protected
    ranks    on probation   | protected: whoever was hit last stands at its end
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import SlruSettings


class Slru(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: SlruSettings) -> None:
        self.settings = settings
        self._hits = 0
        self._known = 0
        self._moment = (-1.0, 0)

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`."""
        self._known += 1
        self._place(entry)

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""
        self._place(entry)

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""
        self._known -= 1

    def key(self, entry: Entry) -> tuple[float, float, int]:
        """See `EvictionPolicy.key`."""
        return entry.memo["rank"], entry.touched_s, -entry.depth

    def _place(self, entry: Entry) -> None:
        if not entry.hits:
            entry.memo["rank"] = float(self._hits)
            return
        # The pages of one request count one hit each, but rank alike: the deepest of them goes
        # first, in whatever order they are told.
        if self._moment[0] != entry.touched_s:
            self._moment = (entry.touched_s, self._hits + 1)
        self._hits += 1
        entry.memo["rank"] = self._moment[1] + self.settings.protected * self._known
