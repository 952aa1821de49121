"""Which waiting requests come soon enough for a cache with tiers to bring their pages nearer."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from camshaft.contracts.scheduler import Item, RequestView, View


class Prefetch:
    """The first waiting requests, as many as can run at once; each is named once for each wait."""

    def __init__(self, most: int) -> None:
        """Look at so many."""
        self._most = most
        self._named: dict[int, int] = {}

    def due(
        self, view: View, items: Sequence[Item], first: Iterable[RequestView] | None = None
    ) -> list[RequestView]:
        """Return those that have come among the first since the last call.

        Args:
            view: Of this step.
            items: Of this step, too: who is in it does not wait any more.
            first: Who waits, in the order in which they will start; None is `View.waiting`.
        """
        due: list[RequestView] = []
        if not view.has_tiers:
            return due
        named, planned = self._named, {item.request.uid for item in items}
        waiting = view.waiting if first is None else first
        for request in islice(waiting, self._most + len(items)):
            if request.uid not in planned and named.get(request.uid) != request.preemptions:
                named[request.uid] = request.preemptions
                due.append(request)
        return due

    def forget(self, request: RequestView) -> None:
        """Forget a request that ended."""
        self._named.pop(request.uid, None)
