"""How many pages the open requests will hold at most, and whether one more fits.

Requests are expected to end one after another, while each of the others grows by a token a step.
The pages of one that ends come back some steps later, when the host has seen it (`lag`), and the
most are held right before that. With requests in order of what they have left, longest first, for
the request `k` that ends next it is

    sum over j <= k of now[j] + min(left[j], left[k] + lag)

Source: the estimate by which LightLLM's router admits requests to its TokenAttention pool
(Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025, arXiv
2507.10150, section 3). Departures: the lag; pages that several hold are counted once, and until
all have ended; what a request will write is a share of what it may write, or a quantile of what
others wrote (see `lengths`), and is not drawn from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..pages import HELD, PageArrays, Pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .requests import OpenRequest


@dataclass(slots=True)
class Forecast:
    """The pages of one pool, as its requests grow and end.

    Attributes:
        shared: Pages that are not one request's own; taken to stay.
        now: Own pages of each request, those of its known tokens included.
        left: Pages that each will still need.
    """

    shared: int = 0
    now: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def add(self, now: int, left: int) -> None:
        """Note a request."""
        self.now.append(now)
        self.left.append(left)

    def peak(self, lag: int) -> int:
        """Return the most pages that are held at once.

        Args:
            lag: Steps for which a request that has ended keeps its pages.
        """
        if not self.now:
            return self.shared
        now, left = np.array(self.now), np.array(self.left)
        order = np.argsort(-left)
        now, left = now[order], left[order]
        # the first `longer[k]` requests still grow when the pages of `k` come back
        back = left + lag
        longer = np.searchsorted(-left, -back, side="right")
        grown = np.concatenate(([0], np.cumsum(left)))
        held = np.cumsum(now) + longer * back + grown[1:] - grown[longer]
        return self.shared + int(held.max())


def foresee(
    others: Iterable[OpenRequest],
    newcomer: OpenRequest,
    group: int,
    pages: PageArrays,
    reused: Pages,
    page_tokens: int,
    lag: int,
) -> Forecast:
    """Return what a pool is used for from when `newcomer` is admitted.

    Args:
        others: The open requests.
        newcomer: Opened next, with all its known tokens.
        group: Index of the pool.
        pages: Of the pool.
        reused: Cached pages that the newcomer adopts.
        page_tokens: Tokens in a page.
        lag: As in `Forecast.peak`; so many tokens more than are known may be in pages. What a
            request holds beyond that was granted ahead, and is taken back if need be.
    """
    forecast, owned = Forecast(), 0
    foreign, claimed = pages.claims(reused)
    for request in others:
        held = request.holds[group]
        length = len(held.table)
        own = length - held.foreign - claimed.get(request.uid, 0)
        tokens = max(len(request.prefix.tokens) + lag, request.opened)
        known = -(-tokens // page_tokens)
        forecast.add(own + known - length, request.pages_left(known, page_tokens))
        owned += own
    known = -(-newcomer.opened // page_tokens)
    forecast.add(known - foreign, newcomer.pages_left(known, page_tokens))
    forecast.shared = pages.counts[HELD] - owned
    return forecast
