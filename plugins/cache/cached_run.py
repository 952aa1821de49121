"""Full pages in a row that later requests may reuse, and where to find them by their text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.eviction import Entry

from .text import TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .generations import Generation


@dataclass(slots=True, eq=False, kw_only=True)
class CachedRun(Entry):
    """Pages of one unit of a text (see `PageDigests`) that share their fate: one entry to evict.

        unit   parent | 0 ... first) in other runs, or not cached   [first ... end) this run

    All are held, leased and fenced alike; a run is cut in two before that changes.

    Attributes:
        number: What `PageArrays.run` says of its pages; 0 once it is gone.
        parent: Digest of all that comes before the unit.
        text: The tokens of the unit up to the run's end.
        first: Pages of the unit before it.
        ids: Its pages.
        after: Digest of the unit, if the run ends it.
        writer: Uid of the request that wrote it.
        step: The step that wrote it.
        until_s: When it becomes too old to be served, whatever the policy says.
        generation: The runs of the same version of its namespace, if it has one.
    """

    number: int
    parent: bytes
    text: bytes
    first: int
    ids: array[int]
    after: bytes = b""
    writer: int
    step: int
    until_s: float = inf
    generation: Generation | None = field(default=None, repr=False)

    @property
    def end(self) -> int:
        """Pages of the unit up to and with the run."""
        return self.first + len(self.ids)

    def is_fresh(self, now: float, most_s: float) -> bool:
        """Whether it may be served now to a request that takes pages of `most_s` seconds."""
        return self.expires_s > now and self.created_s > now - most_s


class RunsByText:
    """The runs of a pool by unit, and in it by the text up to the end of their first page.

    Nothing links a run to those before it: what is evicted leaves the rest where it is.
    """

    def __init__(self, page_tokens: int) -> None:
        self.page_bytes = page_tokens * TOKEN_BYTES
        self.units: dict[bytes, dict[bytes, CachedRun]] = {}
        # where runs begin inside a unit, and how many do: seldom any
        self._inner: dict[bytes, dict[int, int]] = {}

    def __iter__(self) -> Iterator[CachedRun]:
        """Iterate over all runs, unit by unit."""
        for runs in self.units.values():
            yield from runs.values()

    def key(self, run: CachedRun) -> bytes:
        """Return what finds a run in its unit."""
        return run.text[: (run.first + 1) * self.page_bytes]

    def add(self, run: CachedRun) -> None:
        """Let a run be found. No other may have its key."""
        runs = self.units.get(run.parent)
        if runs is None:
            runs = self.units[run.parent] = {}
        runs[self.key(run)] = run
        if run.first:
            inner = self._inner.setdefault(run.parent, {})
            inner[run.first] = inner.get(run.first, 0) + 1

    def remove(self, run: CachedRun) -> None:
        """Let a run be found no more."""
        runs = self.units[run.parent]
        del runs[self.key(run)]
        if not runs:
            del self.units[run.parent]
        if run.first:
            inner = self._inner[run.parent]
            inner[run.first] -= 1
            if not inner[run.first]:
                del inner[run.first]
                if not inner:
                    del self._inner[run.parent]

    def walk(self, parent: bytes, text: bytes) -> list[tuple[CachedRun, int]]:
        """Find what is cached of a unit's leading full pages.

        Args:
            parent: Digest of all that comes before.
            text: Tokens of these pages.

        Returns:
            Runs in order, with how many of their pages agree, at least one. There may be gaps.
        """
        runs, found = self.units.get(parent), list[tuple[CachedRun, int]]()
        if not runs:
            return found
        size, place = self.page_bytes, 0
        while place * size < len(text):
            run = runs.get(text[: (place + 1) * size])
            if run is None:
                later = [one for one in self._inner.get(parent, ()) if one > place]
                if not later:
                    break
                place = min(later)
                continue
            same = len(run.ids)
            if not text.startswith(run.text):
                same = _common(run.text, text) // size - run.first
            found.append((run, same))
            place += same
        return found


def _common(run: bytes, text: bytes) -> int:
    """Return how many leading bytes agree; both are whole tokens."""
    count = min(len(run), len(text)) // TOKEN_BYTES
    ours = np.frombuffer(run, dtype=np.int32, count=count)
    differ = ours != np.frombuffer(text, dtype=np.int32, count=count)
    place = int(differ.argmax())
    return (place if differ[place] else count) * TOKEN_BYTES
