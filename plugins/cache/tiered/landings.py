"""Units in trays that go to the pages of a request: the last part of a load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from camshaft.contracts.moves import PageMove

    from .keeper import Keeper
    from .load import Load
    from .tables import Tables
    from .trays import TrayPool, UnitTray
    from .units import Units


class _Landing:
    """A tray that the executor empties, or is to.

    Attributes:
        tray: It.
        further: Units that came from further tiers, by their place: the nearest gets them, too.
        open: Tickets of its moves.
    """

    def __init__(self, tray: UnitTray, further: dict[int, bytes], open_: Collection[int]) -> None:
        self.tray = tray
        self.further = further
        self.open = set(open_)


class Landings:
    """Has what was fetched copied to the device.

    Attributes:
        landed: Units so far.
    """

    def __init__(
        self,
        units: Units,
        trays: TrayPool,
        keeper: Keeper,
        ticket: Callable[[], int],
        used: Callable[[int, bytes], None],
    ) -> None:
        """Copy nothing yet.

        Args:
            units: Of which form.
            trays: Whose trays these are.
            keeper: Writes units into the nearest tier.
            ticket: Names moves.
            used: Is told the level and the key of each unit.
        """
        self.landed = 0
        self._units = units
        self._trays = trays
        self._keeper = keeper
        self._ticket = ticket
        self._used = used
        self._by_ticket: dict[int, _Landing] = {}
        self._wanted: list[PageMove] = []

    def land(
        self, load: Load, trays: Collection[UnitTray], tables: Tables, first: int, tokens: int
    ) -> None:
        """Fill the pages of a request.

        Args:
            load: What was fetched for it, which has ended.
            trays: Of the load.
            tables: The request.
            first: Number of the first unit to fill.
            tokens: Of its text, where to end; within a unit if the request was swapped out.
        """
        place, end = load.first, -(-tokens // self._units.tokens)
        for tray in trays:
            units, begin = tray.count, max(0, first - place)
            if begin < min(units, end - place):
                tray.keep(begin, min(units, end - place))
                self._fill(load, tables, tray, place + begin, self._units.pages_for(tokens))
            else:
                self._trays.give_back(tray)
            place += units

    def _fill(self, load: Load, tables: Tables, tray: UnitTray, first: int, end: int) -> None:
        """Fill pages from unit `first` on, up to page number `end` of each group."""
        units, size = range(first, first + tray.count), self._units.pages
        pages = range(first * size, min(end, (first + tray.count) * size))
        if len(pages) < tray.count * size:
            tray.cut(len(pages))
        by_group = [table[pages.start : pages.stop] for table in tables.groups]
        moves = tray.moves(by_group, self._ticket)
        own: Collection[bytes] = load.swapped.own if load.swapped is not None else ()
        further = {}
        for place, unit in enumerate(units):
            key, level = load.keys[unit - load.first], load.sources[unit - load.first]
            self._used(level, key)
            if level and key not in own:
                further[place] = key
        landing = _Landing(tray, further, [one.ticket for one in moves])
        self._by_ticket.update(dict.fromkeys(landing.open, landing))
        self._wanted += moves
        self.landed += tray.count

    def take(self) -> list[PageMove]:
        """Return and forget the moves that are to begin now."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def moved(self, ticket: int) -> None:
        """Note that a move has ended."""
        landing = self._by_ticket.pop(ticket)
        landing.open.discard(ticket)
        if not landing.open:
            self._keeper.keep(landing.tray, landing.further)

    def names(self) -> set[bytes]:
        """Return the names of all units that the nearest tier is to get."""
        return {key for one in self._by_ticket.values() for key in one.further.values()}

    def drop(self, keys: Collection[bytes]) -> None:
        """Let none of these get into the nearest tier."""
        for landing in set(self._by_ticket.values()):
            for place in [place for place, key in landing.further.items() if key in keys]:
                del landing.further[place]

    def trays(self) -> list[UnitTray]:
        """Return the trays that the executor empties, or is to."""
        return [one.tray for one in set(self._by_ticket.values())]
