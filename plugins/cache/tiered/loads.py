"""All loads: they get trays in order, are read as fast as the stores take it, and end in time.

A load waits for trays until its pages could be had on the device, too: trays that hold what nobody
can use yet would keep others waiting. That has an end, as all waiting here.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from .load import Load, Phase, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from camshaft.contracts.cache import Prefix

    from .swapped import Swapped
    from .tier import Tiers
    from .trays import TrayPool, UnitTray

_STARVES_AFTER = 2
"""Multiple of the patience after which a load no longer waits for room that others take."""


class Loads:
    """Fetches units into trays.

    Attributes:
        late: Loads so far that took too long and were cut.
        short: Loads so far of which a unit could not be read.
        changes: How often what is fetched has changed.
    """

    def __init__(
        self,
        tiers: Tiers,
        trays: TrayPool,
        *,
        patience_s: float,
        now: Callable[[], float],
        fits: Callable[[int], bool],
    ) -> None:
        """Load nothing yet.

        Args:
            tiers: From where.
            trays: Where to.
            patience_s: How long a load may wait for trays, and how long it may take.
            now: Seconds.
            fits: Whether so many units more would find room on the device.
        """
        self.late = 0
        self.short = 0
        self.changes = 0
        self._tiers = tiers
        self._trays = trays
        self._patience_s = patience_s
        self._now = now
        self._fits = fits
        self._by_uid: dict[int, Load] = {}
        self._by_ticket: dict[int, Load] = {}
        self._queued: deque[Load] = deque()
        self._tickets = 0

    def of(self, uid: int) -> Load | None:
        """Return the load of a request."""
        return self._by_uid.get(uid)

    def all(self) -> Collection[Load]:
        """Return all loads that have trays or wait for some."""
        return self._by_uid.values()

    def begin(
        self,
        uid: int,
        prefix: Prefix,
        first: int,
        keys: Sequence[bytes],
        sources: Sequence[int],
        *,
        at_once: bool = False,
        swapped: Swapped | None = None,
    ) -> Load:
        """Begin to fetch units for a request that has no load.

        Args:
            uid: The request.
            prefix: Its tokens.
            first: Number of the first unit.
            keys: Of the units; as many as trays take at once are fetched.
            sources: The tier of each.
            at_once: Do not wait for room on the device.
            swapped: Whose units these are, if they are not those of the text.
        """
        most = self._trays.most_for_loads * self._trays.units
        load = Load(
            self.next_ticket(),
            uid,
            prefix,
            first,
            list(keys[:most]),
            list(sources[:most]),
            asked_s=self._now(),
            began_s=self._now(),
            waits=not at_once,
            swapped=swapped,
        )
        self._by_uid[uid] = self._by_ticket[load.ticket] = load
        self._queued.append(load)
        self.go_on()
        return load

    def next_ticket(self) -> int:
        """Return a new name for what a request may wait for."""
        self._tickets += 1
        return self._tickets

    def go_on(self) -> None:
        """Give trays to those that wait, and begin reads."""
        while self._queued and self._may_have_trays(self._queued[0]):
            self._give_trays(self._queued.popleft())
        for load in self._by_uid.values():
            if load.phase is Phase.FETCHING:
                self._read(load)

    def _may_have_trays(self, load: Load) -> bool:
        if -(-len(load.keys) // self._trays.units) > self._trays.left_for_loads():
            return False
        if not load.waits or self._fits(len(load.keys)):
            return True
        return self._now() >= load.asked_s + _STARVES_AFTER * self._patience_s

    def _give_trays(self, load: Load) -> None:
        size, count = self._trays.units, len(load.keys)
        load.trays = [self._trays.take(min(size, count - at)) for at in range(0, count, size)]
        self._trays.for_loads += len(load.trays)
        load.units = [Unit.WANTED] * count
        load.open = count
        load.phase = Phase.FETCHING
        load.began_s = self._now()

    def _read(self, load: Load) -> None:
        while load.next < len(load.units):
            place = load.next
            if load.units[place] is Unit.WANTED:
                tray = load.trays[place // self._trays.units]
                ticket = self._tiers[load.sources[place]].read(
                    load.keys[place],
                    tray.seat(place % self._trays.units),
                    partial(self._ended, load, place, tray),
                )
                if ticket is None:
                    return
                tray.busy += 1
                load.units[place] = Unit.READING
                load.reads[place] = ticket
            load.next += 1

    def _ended(self, load: Load, place: int, tray: UnitTray, ok: bool) -> None:
        tray.busy -= 1
        if load.phase is not Phase.FETCHING:
            return
        load.reads.pop(place, None)
        if not ok and self._tries_another(load, place):
            return
        load.units[place] = Unit.THERE if ok else Unit.MISSING
        load.open -= 1
        if not ok:
            self._cut(load, place)
        if not load.open:
            self._fetched(load)
            self.short += load.length < len(load.keys)

    def _tries_another(self, load: Load, place: int) -> bool:
        """Have a unit read from the next tier that holds it; the nearer one may have lost it."""
        further = range(load.sources[place] + 1, len(self._tiers))
        source = next((one for one in further if self._tiers[one].holds(load.keys[place])), None)
        if source is None or load.units[place] is not Unit.READING or load.is_cut:
            return False
        load.sources[place] = source
        load.units[place] = Unit.WANTED
        load.next = min(load.next, place)
        self._read(load)
        return True

    def _cut(self, load: Load, place: int) -> None:
        """Read nothing behind a unit that is missing."""
        load.next, load.is_cut = len(load.units), True
        for other, one in enumerate(load.units):
            if other > place and one is Unit.WANTED:
                load.units[other] = Unit.MISSING
                load.open -= 1
        self._cancel(load, place)

    def _cancel(self, load: Load, place: int) -> None:
        for other, ticket in load.reads.items():
            if other > place:
                self._tiers[load.sources[other]].queue.cancel(ticket)

    def _fetched(self, load: Load) -> None:
        """Keep what is there, and give the other trays back."""
        load.length, kept = load.leading(), 0
        for place, tray in enumerate(load.trays):
            good = min(tray.count, load.length - kept)
            if good <= 0:
                self._release(load.trays[place:])
                self._trays.for_loads -= len(load.trays[place:])
                del load.trays[place:]
                break
            tray.keep(0, good)
            kept += good
        load.phase = Phase.FETCHED
        load.took_s = self._now() - load.began_s
        self.changes += 1

    def is_coming(self, ticket: int) -> bool:
        """Return whether a load has not ended, and cut it if it took too long."""
        load = self._by_ticket.get(ticket)
        if load is None or not load.is_coming:
            return False
        now = self._now()
        if load.phase is Phase.QUEUED and load.waits and not self._fits(len(load.keys)):
            load.began_s = now  # no tier is to blame for that
        if now < load.began_s + self._patience_s:
            return True
        self.late += 1
        if load.phase is Phase.QUEUED:
            self._queued.remove(load)
        self._cancel(load, -1)
        self._fetched(load)
        return False

    def end(self, load: Load) -> list[UnitTray]:
        """Forget a load; return its trays, which are the caller's now."""
        if load.phase is Phase.QUEUED:
            self._queued.remove(load)
        if load.phase is Phase.FETCHING:
            self._cancel(load, -1)
        del self._by_uid[load.uid], self._by_ticket[load.ticket]
        load.phase = Phase.OVER
        self.changes += 1
        self._trays.for_loads -= len(load.trays)
        return load.trays

    def drop(self, load: Load) -> None:
        """Forget a load that nobody wants any more."""
        self._release(self.end(load))

    def _release(self, trays: Sequence[UnitTray]) -> None:
        for tray in trays:
            self._trays.give_back(tray)
