"""Page moves beside the steps: which are under way, and which step has to wait for which.

Loads run in a stream of their own. A step that is given a page of one waits for it, layer by layer;
all others run on: their pages are different ones. Exports are gathered in the stream of the steps,
so that no step has to know of them.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from camshaft.contracts.moves import Moved

from .host_pages import HostPages
from .transfer import Exporting, Loading, PageTransfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.hardware import HardwareBackend
    from camshaft.contracts.moves import PageMove
    from camshaft.step import Step

    from .groups import GroupMemory


class _Load(NamedTuple):
    """Pages that no step is ordered behind yet."""

    group: int
    pages: frozenset[int]
    loading: Loading


class PageMoves:
    """The moves of an executor. Called from the thread that launches steps."""

    def __init__(
        self, groups: Sequence[GroupMemory], hardware: HardwareBackend, *, ratio: int
    ) -> None:
        """Move nothing yet.

        Args:
            groups: Memory of each KV group.
            hardware: The device, open.
            ratio: Kernel pages in a page of the manager.
        """
        self._groups = groups
        self._hardware = hardware
        self._ratio = ratio
        self._transfers: dict[int, PageTransfer] = {}
        self._under_way: deque[tuple[int, Exporting | Loading]] = deque()
        self._ended: list[Moved] = []
        self._loads: list[_Load] = []
        self._place = {layer: place for group in groups for place, layer in enumerate(group.fields)}

    def tray(self, group: int, pages: int) -> HostPages:
        """See `Executor.tray`."""
        return self._transfer(group).room(pages)

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """See `Executor.move`. An export for which the device has no room is given up."""
        started: list[tuple[int, Exporting | Loading]] = []
        try:
            for one in exports:
                self._order({one.group: set(one.pages)})
                try:
                    started.append((one.ticket, self._export(one)))
                except torch.OutOfMemoryError:
                    self._ended.append(Moved(one.ticket, ok=False))
            for one in loads:
                loading = self._transfer(one.group).load(one.pages, _room(one))
                started.append((one.ticket, loading))
                self._loads.append(_Load(one.group, frozenset(one.pages), loading))
        except Exception:
            for _, move in started:  # they use trays that the manager takes back
                move.wait()
            self._loads = [load for load in self._loads if not load.loading.reached()]
            raise
        self._under_way.extend(started)

    def moved(self) -> list[Moved]:
        """See `Executor.moved`."""
        ended, self._ended = self._ended, []
        while self._under_way and self._under_way[0][1].reached():
            ended.append(Moved(self._under_way.popleft()[0]))
        return ended

    def awaited(self, step: Step) -> AwaitedLoads | None:
        """Return the loads of pages that a step is given; None, mostly, if there are none.

        The caller joins them before the step reads or writes pages, layer by layer or as a whole.
        """
        if not self._loads:
            return None
        self._loads = [load for load in self._loads if not load.loading.reached()]
        awaited = self._meeting(_pages_of(step, len(self._groups)))
        return AwaitedLoads(awaited, self._place) if awaited else None

    def _meeting(self, pages: dict[int, set[int]]) -> list[_Load]:
        """Take out the loads of any of these pages, by group."""
        met = [load for load in self._loads if not load.pages.isdisjoint(pages[load.group])]
        self._loads = [load for load in self._loads if load not in met]
        return met

    def _order(self, pages: dict[int, set[int]]) -> None:
        """Let the current stream wait for loads of these pages."""
        if self._loads:
            wanted = {group: pages.get(group, set()) for group in range(len(self._groups))}
            AwaitedLoads(self._meeting(wanted), self._place).join_all()

    def _export(self, one: PageMove) -> Exporting:
        return self._transfer(one.group).export(one.pages, _room(one))

    def _transfer(self, group: int) -> PageTransfer:
        if group not in self._transfers:
            self._transfers[group] = PageTransfer(
                self._groups[group], self._hardware, ratio=self._ratio
            )
        return self._transfers[group]


class AwaitedLoads:
    """Loads that a step joins."""

    def __init__(self, loads: Sequence[_Load], place: dict[int, int]) -> None:
        """Follow them.

        Args:
            loads: At least one.
            place: Of each layer of the model in its group.
        """
        self._by_group: dict[int, list[Loading]] = {}
        for load in loads:
            self._by_group.setdefault(load.group, []).append(load.loading)
        self._place = place

    def join(self, group: int, layer: int) -> None:
        """Let the current stream wait until this layer of the model has its pages."""
        for loading in self._by_group.get(group, ()):
            loading.join(self._place[layer])

    def join_all(self) -> None:
        """Let the current stream wait until all pages are there."""
        for loading in chain.from_iterable(self._by_group.values()):
            loading.join_all()


def _room(move: PageMove) -> HostPages:
    assert isinstance(move.tray, HostPages), "trays come from `tray`"
    return move.tray


def _pages_of(step: Step, groups: int) -> dict[int, set[int]]:
    """Return the pages of each group that a step is given, copies or wipes."""
    written = np.repeat(step.write_group, np.diff(step.write_pages.offsets))
    found = {}
    for group in range(groups):
        copied = step.copies[step.copies[:, 0] == group, 1:]
        fresh = step.fresh[step.fresh[:, 0] == group, 1]
        pages = (step.write_pages.values[written == group], copied.ravel(), fresh)
        found[group] = set(np.concatenate(pages).tolist())
    return found
