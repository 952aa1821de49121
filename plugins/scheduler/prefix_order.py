"""Longest cached prefix first, so that what the cache holds is used before it is evicted.

Source: Zheng et al., "SGLang" (arXiv 2312.07104), section 3: cache-aware scheduling takes the
requests with the longest matched prefix first. Departures: only the first requests of the queue are
compared, hits are looked up a few at a time, and one that has waited for long goes first, since the
paper's order starves whoever shares nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.scheduler import RequestView, View

LOOK_UPS = 4
"""Requests whose hits are looked up for a step: each costs a walk through the cache."""


class PrefixOrder:
    """Remembers hits from step to step; they change with every step, but not by much."""

    def __init__(self, window: int, age_s: float) -> None:
        """Prepare.

        Args:
            window: Requests to compare, the first in the queue.
            age_s: Seconds after which a request goes before those with longer prefixes.
        """
        self._window = window
        self._age_s = age_s
        self._hits: dict[int, int] = {}

    def order(self, view: View) -> list[RequestView]:
        """Return the first waiting requests: those of age by arrival, then by cached tokens."""
        window = list(islice(view.waiting, self._window))
        self._look_up(view, window)
        since, hits = view.now - self._age_s, self._hits
        return sorted(
            window,
            key=lambda one: -hits[one.uid] if one.arrival > since else -(1 << 62),
        )

    def _look_up(self, view: View, window: list[RequestView]) -> None:
        """Renew the hits that were looked up longest ago; new ones come first."""
        known = {one.uid: one for one in window}
        hits = {uid: tokens for uid, tokens in self._hits.items() if uid in known}
        new = [one for one in window if one.uid not in hits]
        old = [known[uid] for uid in islice(hits, max(0, LOOK_UPS - len(new)))]
        for one in new[LOOK_UPS:]:
            hits[one.uid] = 0
        for one in (*new[:LOOK_UPS], *old):
            hits.pop(one.uid, None)
            hits[one.uid] = view.cached_tokens(one)
        self._hits = hits
