"""Which units turn out to be wrong: those of steps that failed, and of requests that computed junk.

What was computed from a wrong unit is wrong too, and it names the wrong one among its predecessors:
each unit that is to leave the device is noted with the one before it, and open requests that have a
wrong one in their text lose their trust. Pages can be shorter than a unit: a fork, or who found
some on the device, has wrong ones in a unit of another name, which begins with the same page.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from camshaft.contracts.cache import Prefix

    from .exports import Outgoing
    from .tables import Tables
    from .units import Units

_MOST_KNOWN = 2**16
"""Units whose predecessor is remembered, those that left last: junk is found out within steps."""


class _Filled(NamedTuple):
    """Units of a request that a step fills."""

    tables: Tables
    first: int
    end: int


class _Known(NamedTuple):
    """A unit that was to leave the device.

    Attributes:
        parent: Name of the one before it.
        stem: Names that one and the tokens of the unit's first page, if a unit has more pages.
    """

    parent: bytes
    stem: int


class Trust:
    """Finds what is wrong; forgetting it is the caller's."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._unfinished: dict[int, list[_Filled]] = {}
        self._complete = 0  # steps count from 1

    def note(self, tables: Tables, first: int, end: int, step: int) -> None:
        """Note that `step` fills units `first` to `end` of a request."""
        if step > self._complete:
            self._unfinished.setdefault(step, []).append(_Filled(tables, first, end))

    def inherit(self, parent: Tables, child: Tables) -> None:
        """Let a fork share the fate of its parent, should an unfinished step fail."""
        for log in self._unfinished.values():
            log += [_Filled(child, one.first, one.first) for one in log if one.tables is parent]

    def leaves(self, unit: Outgoing) -> None:
        """Note a unit that is to leave the device."""
        parts = self._units.pages > 1
        stem = self._stem(unit.parent, unit.tables.prefix, unit.place) if parts else 0
        self._known[unit.key] = _Known(unit.parent, stem)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _stem(self, parent: bytes, prefix: Prefix, place: int) -> int:
        at = place * self._units.tokens
        return hash((parent, tuple(prefix.tokens[at : at + self._units.page_tokens])))

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete and cannot fail any more."""
        self._complete = max(self._complete, step)
        for done in [one for one in self._unfinished if one <= step]:
            del self._unfinished[done]

    def revoke(self, step: int, requests: Iterable[Tables]) -> set[bytes]:
        """Return what `step`, which failed, and later ones filled, and what builds on it."""
        wrong: set[bytes] = set()
        for late in [one for one in self._unfinished if one >= step]:
            for tables, first, end in self._unfinished.pop(late):
                tables.trusted = False
                wrong.update(self._units.keys(tables.prefix, end)[first:end])
        return self._spread(wrong, requests)

    def forget(self, tables: Tables, requests: Iterable[Tables]) -> set[bytes]:
        """Return the units that a request wrote or loaded, and what may build on them."""
        size = self._units.tokens
        first, end = tables.own_from // size, tables.committed // size
        names = self._units.keys(tables.prefix, end)[:end]
        wrong = set(names[first:])
        if self._units.pages > 1:
            stems = {
                self._stem(names[place - 1] if place else b"", tables.prefix, place)
                for place in range(first, end + 1)
                if place * size + self._units.page_tokens <= tables.committed
            }
            wrong |= {key for key, one in self._known.items() if one.stem in stems}
            for one in requests:
                one.trusted &= not tables.may_be_read_by(one.prefix, self._units.page_tokens)
        return self._spread(wrong, requests)

    def _spread(self, wrong: set[bytes], requests: Iterable[Tables]) -> set[bytes]:
        if not wrong:
            return wrong
        for tables in requests:
            count = tables.committed // self._units.tokens
            if tables.trusted and not wrong.isdisjoint(
                self._units.keys(tables.prefix, count)[:count]
            ):
                tables.trusted = False
        while more := self._children(wrong):
            wrong |= more
        return wrong

    def _children(self, wrong: Collection[bytes]) -> set[bytes]:
        return {key for key, one in self._known.items() if one.parent in wrong and key not in wrong}
