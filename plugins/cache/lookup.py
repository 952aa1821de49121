"""The longest cached prefix of a text, in all groups at once."""

from __future__ import annotations

from array import array
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from .matching import longest_match, passed_pages
from .text import token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import Prefix

    from .cached_run import CachedRun
    from .digests import PageDigests
    from .pool import Pool


class Age(NamedTuple):
    """What is fresh enough: see `CachedRun.is_fresh`."""

    now: float
    most_s: float


ANY_AGE = Age(-inf, inf)


class Lookup:
    """Finds pages by text. It changes nothing."""

    def __init__(
        self,
        pools: Sequence[Pool],
        windows: Sequence[int],
        digests: PageDigests,
        page_tokens: int,
    ) -> None:
        """Look into some pools.

        Args:
            pools: One for each group.
            windows: Of the groups; 0 is full.
            digests: Names units.
            page_tokens: Tokens in a page.
        """
        self._pools = pools
        self._windows = windows
        self._digests = digests
        self._page_tokens = page_tokens
        self._full = [place for place, window in enumerate(windows) if not window]
        self._sliding = [place for place, window in enumerate(windows) if window]

    def match(self, prefix: Prefix, most: int, age: Age) -> tuple[int, tuple[array[int], ...]]:
        """Return how many leading pages all groups can serve, at most `most`, and which they are.

        The pages of each group leave out those that its window has passed.
        """
        leading: dict[int, array[int]] = {}
        for group in self._full:
            leading[group] = self._leading(self._pools[group], prefix, most, age)
            most = len(leading[group])
        if not self._sliding or not most:
            return most, tuple(leading[group][:most] for group in self._full)
        size = self._page_tokens
        found = [self._places(self._pools[group], prefix, most, age) for group in self._sliding]
        windows = [self._windows[group] for group in self._sliding]
        length = longest_match(found, windows, range(most), most, size)
        held = dict(zip(self._sliding, found, strict=True))
        pages = []
        for group, window in enumerate(self._windows):
            if not window:
                pages.append(leading[group][:length])
                continue
            seen = range(passed_pages(length * size, window, size), length)
            pages.append(array("i", [held[group][place] for place in seen]))
        return length, tuple(pages)

    def _leading(self, pool: Pool, prefix: Prefix, most: int, age: Age) -> array[int]:
        """Return the leading pages that a pool has, at most `most`."""
        found, unit_pages = array("i"), self._digests.unit
        units, page_bytes = pool.index.units, pool.index.page_bytes
        parent = self._digests.parent(prefix, 0)
        while len(found) < most:
            runs = units.get(parent)
            if runs is None:
                break
            start, end = len(found), min(len(found) + unit_pages, most)
            # of a text that is known from nowhere only the first unit is converted
            data = token_bytes(prefix, (most if start else end) * self._page_tokens)
            text = bytes(data[start * page_bytes : end * page_bytes])
            run = runs.get(text[:page_bytes])
            if run is None:
                break
            if run.text == text and run.is_fresh(*age):  # a whole unit: mostly it is
                found += run.ids
            else:
                run = self._within(pool, parent, text, age, found)
            if run is None or len(found) < start + unit_pages:
                break
            parent = run.after
        return found

    @staticmethod
    def _within(
        pool: Pool, parent: bytes, text: bytes, age: Age, found: array[int]
    ) -> CachedRun | None:
        """Add the leading pages of a unit that a pool has; return the last run that has any."""
        place, last = 0, None
        for run, same in pool.index.walk(parent, text):
            if run.first != place or not run.is_fresh(*age):
                break
            found += run.ids[:same]
            place, last = place + same, run
        return last

    def _places(self, pool: Pool, prefix: Prefix, most: int, age: Age) -> dict[int, int]:
        """Return what a pool has of the first `most` pages, by place; there may be gaps."""
        found: dict[int, int] = {}
        unit_pages = self._digests.unit
        for unit in range(-(-most // unit_pages)):
            start = unit * unit_pages
            text = self._digests.text(prefix, unit, min(unit_pages, most - start))
            for run, same in pool.index.walk(self._digests.parent(prefix, unit), text):
                if run.is_fresh(*age):
                    found.update(enumerate(run.ids[:same], start + run.first))
        return found
