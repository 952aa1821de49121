"""A prompt may wait a step for a page that another one computes in this step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from camshaft.contracts.scheduler import RequestView, View


class PrefixWait:
    """Puts requests off, once for each page: a cache that shares nothing must not hold them up."""

    def __init__(self) -> None:
        self._put_off: dict[int, Hashable] = {}
        self._coming: set[Hashable] = set()

    def begin(self, view: View, running: Iterable[RequestView]) -> None:
        """Note what `running` compute in a new step."""
        self._coming = {view.next_page(request) for request in running}

    def holds(self, view: View, request: RequestView) -> bool:
        """Whether another request of this step computes the page that `request` needs next."""
        page = view.next_page(request)
        if page is None or page not in self._coming:
            self._coming.add(page)
            return False
        if self._put_off.get(request.uid) == page:
            return False
        self._put_off[request.uid] = page
        return True

    def forget(self, request: RequestView) -> None:
        """Drop a request that ended."""
        self._put_off.pop(request.uid, None)
