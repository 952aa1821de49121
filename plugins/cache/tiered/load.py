"""One load: units of a waiting request on their way from the tiers into trays."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

    from .swapped import Swapped
    from .trays import UnitTray


class Phase(Enum):
    """How far a load is."""

    QUEUED = 0
    """It waits for trays."""
    FETCHING = 1
    """Units are being read."""
    FETCHED = 2
    """What could be read is in trays, and waits for pages."""
    OVER = 3
    """Its trays are somebody else's."""


class Unit(Enum):
    """State of a unit of a load."""

    WANTED = 0
    READING = 1
    THERE = 2
    MISSING = 3


@dataclass(slots=True, eq=False)
class Load:
    """See the module.

    Attributes:
        ticket: Positive; names it in a `Wait`, negated.
        uid: The request.
        prefix: Its tokens.
        first: Number of its first unit in the text.
        keys: Of its units.
        sources: The tier that each comes from.
        asked_s: When it was asked for.
        began_s: Since when it waits for trays alone, or is read.
        waits: Whether it waits for room on the device.
        trays: All but the last are full.
        units: How far each unit is.
        reads: For those being read, the ticket of the read.
        next: The first unit that may still be wanted.
        open: Units that are wanted or being read.
        is_cut: Whether a unit is missing, so that nothing behind it is wanted.
        length: Leading units that are there, once it is fetched.
        took_s: Seconds that it was read for.
        swapped: Whose units these are, if their request was preempted by swap.
    """

    ticket: int
    uid: int
    prefix: Prefix
    first: int
    keys: list[bytes]
    sources: list[int]
    asked_s: float
    began_s: float
    waits: bool = True
    phase: Phase = Phase.QUEUED
    trays: list[UnitTray] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)
    next: int = 0
    open: int = 0
    is_cut: bool = False
    length: int = 0
    took_s: float = 0.0
    swapped: Swapped | None = None

    @property
    def end(self) -> int:
        """Number of the unit behind the last that is there, once it is fetched."""
        return self.first + self.length

    @property
    def is_coming(self) -> bool:
        """Whether units may still arrive."""
        return self.phase in (Phase.QUEUED, Phase.FETCHING)

    def leading(self) -> int:
        """Return how many leading units are there, in trays into which nothing is read any more."""
        there = 0
        for tray in self.trays:
            if tray.busy:
                break
            mine = self.units[there : there + tray.count]
            good = next((n for n, one in enumerate(mine) if one is not Unit.THERE), len(mine))
            there += good
            if good < len(mine):
                break
        return there
