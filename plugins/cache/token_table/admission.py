"""Whether there is room: for pages now, and for requests until they have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.cache import NoSpace, Wait

from ..pages import LEASED, NO_PAGES, Pages
from .forecast import foresee

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pool import TokenPool
    from .requests import OpenRequest


def lacking(
    pools: Sequence[TokenPool], count: int, reused: Sequence[Pages] = ()
) -> Wait | NoSpace | None:
    """Say what stands in the way of `count` new pages in every pool, or None.

    Args:
        pools: All of them.
        count: New pages in each.
        reused: For each pool, cached pages that are adopted, and cannot be evicted.
    """
    ticket = 0
    for place, (pool, kept) in enumerate(
        zip(pools, reused or [NO_PAGES] * len(pools), strict=True)
    ):
        short = count - pool.pages.available(kept)
        if short <= 0:
            continue
        step = pool.pages.when(short, kept)
        if step is None:
            return NoSpace(place, short - pool.pages.coming(kept))
        ticket = max(ticket, step)
    return Wait(ticket) if ticket else None


class Admission:
    """Admits requests that can run to their expected ends together with those that are open."""

    def __init__(
        self, pools: Sequence[TokenPool], requests: Mapping[int, OpenRequest], page_tokens: int
    ) -> None:
        """Watch the open requests of a manager."""
        self._pools = pools
        self._requests = requests
        self._page_tokens = page_tokens
        self._closed = False

    def admits(self, request: OpenRequest, reused: Sequence[Pages], lag: int) -> bool:
        """Whether a request may be opened.

        One that is alone always may, so that somebody can always run. While one that may not waits
        for a step to end, so do those that ask after it: small ones must not starve a large one.

        Args:
            request: Who asks.
            reused: For each pool, the cached pages that it adopts.
            lag: Steps that are launched until one that ends a request is settled.
        """
        if not self._requests or not request.prefix.most_tokens:
            return True
        self._closed = self._closed or not self._fits(request, reused, lag)
        return not self._closed

    def step_ended(self) -> None:
        """Note that requests may have ended: whoever comes first is asked anew."""
        self._closed = False

    def _fits(self, request: OpenRequest, reused: Sequence[Pages], lag: int) -> bool:
        others, size = self._requests.values(), self._page_tokens
        for group, (pool, ids) in enumerate(zip(self._pools, reused, strict=True)):
            forecast = foresee(others, request, group, pool.pages, ids, size, lag)
            if forecast.peak(lag) > pool.pages.total - pool.pages.counts[LEASED]:
                return False
        return True
