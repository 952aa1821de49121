"""Greedy dual, size, frequency: what is cheap to compute again and seldom used goes first.

An entry ranks by age + uses x cost / size, where age is the rank of the last entry that was
evicted, so that what fell out of use is overtaken in time.

Source: Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
Policy", HP Labs HPL-98-69R1, 1998. The cost of a page is the time to compute its tokens again. The
linears of the model cost the same for each of them, attention costs more the longer the sequence.
So per page, in units of the linears' work,

    cost / size  =  1 + reach / (2 * attention_tokens)

where `reach` is the length of the longest sequence that used the page, and half of it the mean
number of keys that its tokens attend to. The length of the sequence stands for the depth of the
page, because without a page those behind it are lost as well: all pages of a sequence are worth
the same, the deepest goes first, and pages of long sequences stay longer than those of short ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry, EvictionPolicy

if TYPE_CHECKING:
    from ..components import GdsfSettings


class Gdsf(EvictionPolicy):
    """See the module."""

    def __init__(self, settings: GdsfSettings) -> None:
        self.settings = settings
        self._age = 0.0

    def on_insert(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_insert`. To be computed counts as a use."""
        self._rank(entry)

    def on_touch(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_touch`."""
        self._rank(entry)

    def on_evict(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_evict`."""
        self._age = max(self._age, entry.memo["rank"])

    def on_discard(self, entry: Entry) -> None:
        """See `EvictionPolicy.on_discard`. Tells nothing of what the others are worth."""

    def key(self, entry: Entry) -> tuple[float, float, int]:
        """See `EvictionPolicy.key`."""
        return entry.memo["rank"], entry.touched_s, -entry.depth

    def _rank(self, entry: Entry) -> None:
        cost = 1.0 + entry.reach / (2 * self.settings.attention_tokens)
        entry.memo["rank"] = self._age + (1 + entry.hits) * cost
