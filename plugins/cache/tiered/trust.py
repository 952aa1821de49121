"""Which units turn out to be wrong: those of steps that failed, and of requests that computed junk.

What was computed from a wrong unit is wrong too, and it names the wrong one among its predecessors:
each unit that leaves the device is noted with the one before it, and open requests that have a
wrong one in their text lose their trust.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .tables import Tables
    from .units import Units

_MOST_KNOWN = 2**16
"""Units whose predecessor is remembered, those that left last: junk is found out within steps."""


class _Filled(NamedTuple):
    """Units of a request that a step fills."""

    tables: Tables
    first: int
    end: int


class Trust:
    """Finds what is wrong; forgetting it is the caller's."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()
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

    def left(self, key: bytes, parent: bytes) -> None:
        """Note that a unit leaves the device, and the one before it in its text."""
        self._parents[key] = parent
        if len(self._parents) > _MOST_KNOWN:
            self._parents.popitem(last=False)

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
        """Return the units that a request wrote or loaded, and what builds on them."""
        size = self._units.tokens
        first, end = tables.own_from // size, tables.committed // size
        return self._spread(set(self._units.keys(tables.prefix, end)[first:end]), requests)

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
        return {
            key for key, parent in self._parents.items() if parent in wrong and key not in wrong
        }
