"""Writing trays of units into the tiers: the nearest that takes a unit keeps it."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .tier import Tiers
    from .trays import TrayPool, UnitTray


class _Parcel(NamedTuple):
    """A unit in a tray, on its way into tier number `level`."""

    level: int
    key: bytes
    tray: UnitTray
    place: int


class Keeper:
    """Gives trays back when all their units are kept or refused.

    Attributes:
        refused: Units so far that no tier took.
    """

    def __init__(self, tiers: Tiers, trays: TrayPool, kept: Callable[[int, bytes], None]) -> None:
        """Keep nothing yet.

        Args:
            tiers: Where to.
            trays: Whose trays these are.
            kept: Is told the level and the key of each unit that a tier took.
        """
        self.refused = 0
        self._tiers = tiers
        self._trays = trays
        self._kept = kept
        self._parcels: deque[_Parcel] = deque()
        self._writing: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._parcels)

    def has(self, key: bytes) -> bool:
        """Return whether a unit waits for being written."""
        return any(one.key == key for one in self._parcels)

    def names(self) -> set[bytes]:
        """Return the names of all units that wait for being written, or are."""
        return {one.key for one in self._parcels} | self._writing

    def keep(self, tray: UnitTray, keys: Mapping[int, bytes]) -> None:
        """Write units, by their place in the tray."""
        for place, key in keys.items():
            self._parcels.append(_Parcel(0, key, tray, place))
        tray.busy += len(keys)
        self._trays.give_back(tray)
        self.go_on()

    def go_on(self) -> None:
        """Begin as many writes as the stores take."""
        while self._parcels:
            one = self._parcels[0]
            tier = self._tiers[one.level]
            if tier.holds(one.key):
                one.tray.busy -= 1
            elif tier.write(one.key, one.tray.seat(one.place), partial(self._ended, one)):
                self._writing.add(one.key)
            else:
                return
            self._parcels.popleft()

    def drop(self, keys: Collection[bytes]) -> None:
        """Write none of these, as far as that has not begun; what has is the tier's to forget."""
        self._writing.difference_update(keys)
        for one in [one for one in self._parcels if one.key in keys]:
            self._parcels.remove(one)
            one.tray.busy -= 1

    def _ended(self, one: _Parcel, ok: bool) -> None:
        is_wanted = one.key in self._writing
        self._writing.discard(one.key)
        if ok and is_wanted:
            self._kept(one.level, one.key)
        elif is_wanted and one.level + 1 < len(self._tiers):
            self._parcels.append(one._replace(level=one.level + 1))
            return
        else:
            self.refused += is_wanted
        one.tray.busy -= 1
