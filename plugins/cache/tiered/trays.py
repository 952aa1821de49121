"""Trays of units: the host memory through which pages travel between the device and the tiers.

A tray has one owner at a time: the executor while a move with it is under way, the threads of the
stores while units are read into or written from it, a load that waits for its request in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.moves import PageMove

from .units import Seat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from camshaft.contracts.moves import Tray

    from .units import Units


class UnitTray:
    """Room for some units, in a tray for each group.

    Attributes:
        count: Units that it has room for.
        busy: Reads and writes of stores that are under way.
    """

    def __init__(self, units: Units, whole: Sequence[Tray]) -> None:
        self.busy = 0
        self._units = units
        self._whole = whole
        self.resize(whole[0].count // units.pages)

    def resize(self, count: int) -> None:
        """Make it one for `count` units. What it held is void."""
        assert not self.busy, "a tray that is being read or written keeps its form"
        self.count = count
        self._trays = [tray.first(count * self._units.pages) for tray in self._whole]

    def seat(self, place: int) -> Seat:
        """Return the room of unit number `place`."""
        return Seat(self._units, self._trays, place)

    def keep(self, first: int, end: int) -> None:
        """Leave only the units `first` to `end`, in a smaller tray."""
        if (first, end) == (0, self.count):
            return
        kept = []
        for place in range(first, end):
            unit = memoryview(bytearray(self._units.bytes))
            self.seat(place).read(unit)
            kept.append(unit)
        self.resize(len(kept))
        for place, unit in enumerate(kept):
            self.seat(place).write(unit)

    def cut(self, pages: int) -> None:
        """Leave only so many pages of each group, the first; the last unit is none any more."""
        for group, (tray, size) in enumerate(zip(self._trays, self._units.page_bytes, strict=True)):
            kept = [memoryview(bytearray(size)) for _ in range(pages)]
            for place, page in enumerate(kept):
                tray.read(place, page)
            self._trays[group] = smaller = self._whole[group].first(pages)
            for place, page in enumerate(kept):
                smaller.write(place, page)

    def moves(
        self, pages: Sequence[Sequence[int]], ticket: Callable[[], int]
    ) -> tuple[PageMove, ...]:
        """Return a move between this tray and these pages of each group, in the order of seats."""
        return tuple(
            PageMove(ticket(), group, own, tray)
            for group, (own, tray) in enumerate(zip(pages, self._trays, strict=True))
        )


class TrayPool:
    """All trays.

    Attributes:
        units: Units that a tray has room for.
        total: How many trays there are.
        free: Those that nobody has.
        most_for_loads: Trays that loads may have at a time.
        for_loads: How many of those that are taken belong to loads.
        leaving: Those that were given back while a store still used them.
    """

    def __init__(
        self, units: Units, tray: Callable[[int, int], Tray], total: int, size: int
    ) -> None:
        """Make `total` trays for `size` units each.

        Args:
            units: Of which form.
            tray: Of `CacheSpec`.
            total: How many.
            size: Units in each.
        """
        self.units = size
        self.total = total
        groups = range(len(units.page_bytes))
        self.free = [
            UnitTray(units, [tray(group, size * units.pages) for group in groups])
            for _ in range(total)
        ]
        self.most_for_loads = total - total // 4
        self.for_loads = 0
        self.leaving: list[UnitTray] = []

    def left_for_exports(self) -> int:
        """Return how many trays exports may take: a quarter is for loads, if they lack it."""
        return len(self.free) - max(0, self.total // 4 - self.for_loads)

    def left_for_loads(self) -> int:
        """Return how many trays loads may take."""
        return min(len(self.free), self.most_for_loads - self.for_loads)

    def take(self, count: int) -> UnitTray:
        """Take a tray, for `count` units. The caller has seen that one is free."""
        tray = self.free.pop()
        tray.resize(count)
        return tray

    def give_back(self, tray: UnitTray) -> None:
        """Give a tray back; it is free once no store uses it any more."""
        self.leaving.append(tray)
        self.sweep()

    def sweep(self) -> None:
        """Free trays that were given back and are idle now."""
        if self.leaving:
            self.free += [one for one in self.leaving if not one.busy]
            self.leaving = [one for one in self.leaving if one.busy]
