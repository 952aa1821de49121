"""Takes back what turned out to be wrong, and whatever was computed from it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ..pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pool import TokenPool
    from .requests import OpenRequest


class Trust:
    """Knows what the commits of unfinished steps made matchable.

    Attributes:
        complete: All steps up to this one are complete; they count from 1.
        in_flight: Most steps that were seen to be unfinished at once.
    """

    def __init__(self, pools: Sequence[TokenPool], requests: Mapping[int, OpenRequest]) -> None:
        """Watch the open requests of a manager."""
        self._pools = pools
        self._requests = requests
        self._unfinished: dict[int, list[tuple[OpenRequest, int]]] = {}
        self.complete = 0
        self.in_flight = 0

    def see(self, step: int) -> None:
        """Note that a step was launched."""
        self.in_flight = max(self.in_flight, step - self.complete)

    def note(self, request: OpenRequest, first: int, step: int) -> None:
        """Note that an unfinished step writes pages of a request, from page `first` on."""
        log = self._unfinished.get(step)
        if log is None:
            log = self._unfinished[step] = []
            self.see(step)
        log.append((request, first))

    def inherit(self, parent: OpenRequest, child: OpenRequest) -> None:
        """Let a fork share the fate of its parent: it reads what the same steps write."""
        for log in self._unfinished.values():
            log += [(child, first) for request, first in log if request is parent]

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete and cannot be revoked any more."""
        self.complete = max(self.complete, step)
        for done in [one for one in self._unfinished if one <= step]:
            del self._unfinished[done]

    def revoke(self, step: int) -> list[tuple[int, int]]:
        """Take back what `step` and later ones, which build on it, wrote.

        Returns:
            Groups, each with a number of pages that were forgotten.
        """
        late = [one for one in self._unfinished if one >= step]
        written = [one for each in late for one in self._unfinished.pop(each)]
        for request, _ in written:
            request.trusted = False
        return [cut for request, first in written for cut in self.forget(request, first)]

    def forget(self, request: OpenRequest, first: int) -> list[tuple[int, int]]:
        """Take back what a request wrote from page `first` on, and what builds on it.

        Returns:
            Groups, each with a number of pages that were forgotten.
        """
        cuts = []
        self._distrust_forks(request, first)
        for group, pool in enumerate(self._pools):
            cut = pool.forget(request, request.holds[group], first)
            if cut is None:
                continue
            cuts.append((group, cut.pages))
            # whoever holds any of the pages that went holds the first of them
            wrong = array("i", (cut.first,))
            for one in self._requests.values():
                if one.holds[group].table[cut.place : cut.place + 1] == wrong:
                    one.trusted = False
        return cuts

    def _distrust_forks(self, request: OpenRequest, first: int) -> None:
        """Let nobody enter pages of a request that are not in a tree, as its forks could."""
        for one in self._requests.values():
            for mine, others in zip(request.holds, one.holds, strict=True):
                end = min(len(mine.table), len(others.table))
                same = pages_of(mine.table[first:end]) == pages_of(others.table[first:end])
                one.trusted &= not same.any()
