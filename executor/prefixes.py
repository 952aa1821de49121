"""Which running requests begin with the same pages, so that attention can read them once.

Source: Juravsky et al., Hydragen, arXiv 2402.05099, for attention over a shared prefix. Where
prefixes are nested (a system prompt, then examples) a request is in one group only: those groups
are chosen that spare the most reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.attention import SharedPrefixes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.speculator import Speculator
    from camshaft.step import Int32, Step

    from .groups import GroupMemory
    from .state import DeviceState

LEAST_REQUESTS = 4  # of a group: a tile of queries is computed whole, however few are in it
LEAST_TOKENS = 256  # of a prefix: the pieces of a shorter one are merged for longer than read
NEW_SHARE = 16  # search again when one in so many requests is new,
PATIENCE = 16  # or when any is new and so many steps have gone by


class SharedPages:
    """Follows the page tables of one KV group on the host, and groups requests by equal starts.

    A steady decode step costs a comparison of slots. A search (0.1 ms for 256 requests) is due only
    when requests have come; who leaves takes nothing from the others.
    """

    def __init__(
        self, group: int, slots: int, columns: int, page_tokens: int, pays_from: int
    ) -> None:
        """Know no pages yet.

        Args:
            group: KV group.
            slots: Of the engine.
            columns: Pages of the longest sequence.
            page_tokens: Of a page of the KV manager.
            pays_from: `AttentionBackend.sharing_pays_from`.
        """
        self.group = group
        self.page_tokens = page_tokens
        self.pays_from = pays_from
        self.searches = 0
        self._pages = np.zeros((slots, columns), dtype=np.int32)
        self._label = np.full(slots, -1, dtype=np.int64)  # group of each slot, never used twice
        self._shared = np.zeros(slots, dtype=np.int32)  # pages of that group's prefix
        self._searched = np.zeros(slots, dtype=np.bool_)
        self._labels = 0
        self._waited = 0
        self._slots: Int32 | None = None  # for which `_found` is the answer
        self._found: SharedPrefixes | None = None

    def follow(self, step: Step) -> None:
        """Take in a step's admissions and table writes. Called for every step, in launch order."""
        if len(step.admissions):
            self._pages[step.admissions.slots] = 0
            self._forget(step.admissions.slots)
        if len(step.write_group):
            self._write(step)

    def _write(self, step: Step) -> None:
        slot, first, pages = step.write_slot, step.write_first, step.write_pages
        mine = step.write_group == self.group
        counts = pages.offsets[1:] - pages.offsets[:-1]
        # page i of all goes to place i + shift of the flat table
        shift = slot * self._pages.shape[1] + first - pages.offsets[:-1]
        place = np.repeat(shift, counts) + np.arange(len(pages.values))
        here = np.repeat(mine, counts)
        self._pages.reshape(-1)[place[here]] = pages.values[here]
        changed = mine & (first < self._shared[slot])
        if changed.any():
            self._forget(slot[changed])

    def _forget(self, slots: Int32) -> None:
        self._label[slots] = -1
        self._shared[slots] = 0
        self._searched[slots] = False
        self._slots = None

    def among(self, slots: Int32, context: Int32) -> SharedPrefixes | None:
        """Return what these requests share, or None if it is not worth acting upon.

        Args:
            slots: [R] of decoding requests.
            context: [R] exact tokens in pages.

        Returns:
            The same object as long as nothing changes.
        """
        if self._slots is not None and np.array_equal(slots, self._slots):
            return self._found
        new = len(slots) - int(np.count_nonzero(self._searched[slots]))
        self._waited += new > 0
        if new and (new * NEW_SHARE >= len(slots) or self._waited >= PATIENCE):
            self._search(slots, context)
            new = 0
        found = self._groups(slots)
        if not _equal(found, self._found):
            self._found = found
        self._slots = None if new else slots.copy()
        return self._found

    def _groups(self, slots: Int32) -> SharedPrefixes | None:
        """Read the labels of these slots."""
        label = self._label[slots]
        members = np.flatnonzero(label >= 0)
        if len(members) < LEAST_REQUESTS:
            return None
        _, first, number, count = np.unique(
            label[members], return_index=True, return_inverse=True, return_counts=True
        )
        kept = count >= LEAST_REQUESTS
        tokens = self._shared[slots[members[first]]] * self.page_tokens
        if int(((count - 1) * tokens)[kept].sum()) < self.pays_from:
            return None
        group = np.full(len(slots), -1, dtype=np.int32)
        group[members] = np.where(kept, np.cumsum(kept) - 1, -1)[number]
        return SharedPrefixes(group, tokens[kept].astype(np.int32))

    def _search(self, slots: Int32, context: Int32) -> None:
        """Label these slots anew: sorted by their pages, those that share a prefix are neighbours.

        The longest common prefixes of neighbours then say everything, as in a suffix array
        (Abouelhoda et al., "Replacing suffix trees with enhanced suffix arrays", 2004).
        """
        self.searches += 1
        self._waited = 0
        self._forget(slots)
        self._searched[slots] = True
        least = -(-LEAST_TOKENS // self.page_tokens)
        whole = context // self.page_tokens
        slots, whole = slots[whole >= least], whole[whole >= least]
        if len(slots) < LEAST_REQUESTS:
            return
        pages = np.ascontiguousarray(self._pages[slots, : int(whole.max())])
        order = pages.view(np.dtype((np.void, pages.shape[1] * 4))).ravel().argsort()
        slots, whole, pages = slots[order], whole[order], pages[order]
        equal = (pages[1:] == pages[:-1]) & (pages[1:] != 0)  # the null page is nobody's
        common = np.where(equal.all(axis=1), pages.shape[1], equal.argmin(axis=1))
        common = np.minimum(common, np.minimum(whole[1:], whole[:-1]))
        common[common < least] = 0
        for run in best_runs(common):
            self._label[slots[run.first : run.last]] = self._labels
            self._shared[slots[run.first : run.last]] = run.pages
            self._labels += 1


def _equal(one: SharedPrefixes | None, other: SharedPrefixes | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.group, other.group) and np.array_equal(one.tokens, other.tokens)


@dataclass(slots=True)
class Run:
    """Neighbours in sorted order that share pages.

    Attributes:
        pages: All of them share.
        first: The first row.
        last: One past the last row; 0 while more may come.
        inside: The best choice among runs within this one, which share more pages.
        spared: Pages that need not be read again, with that choice.
    """

    pages: int
    first: int
    last: int = 0
    inside: list[Run] = field(default_factory=list)
    spared: int = 0

    def take(self, other: Run) -> None:
        """Add what was best within `other`."""
        self.inside += other.inside
        self.spared += other.spared

    def close(self, last: int) -> None:
        """Choose this run itself, if that spares more than the runs within it."""
        self.last = last
        own = self.pages * (last - self.first - 1)
        if last - self.first >= LEAST_REQUESTS and own > self.spared:
            self.inside, self.spared = [self], own


def best_runs(common: NDArray[np.integer]) -> list[Run]:
    """Return disjoint runs of at least `LEAST_REQUESTS` rows that together spare the most pages.

    Args:
        common: [n - 1] pages that each row shares with the next, in sorted order.
    """
    nested = [Run(0, 0)]  # runs that are still open, ever more pages
    for row, pages in enumerate([*common.tolist(), 0], 1):
        if pages == nested[-1].pages:
            continue
        inner = Run(0, row - 1)  # with the best choice from `inner.first` to here
        while nested[-1].pages > pages:
            run = nested.pop()
            run.take(inner)
            run.close(row)
            inner = Run(0, run.first, 0, run.inside, run.spared)
        if nested[-1].pages < pages:
            nested.append(Run(pages, inner.first))
        nested[-1].take(inner)
    return nested[0].inside


def followed(
    groups: Sequence[GroupMemory], state: DeviceState, speculator: Speculator | None
) -> list[SharedPages | None]:
    """Follow the pages of each KV group whose backend reads shared prefixes once."""
    found: list[SharedPages | None] = []
    for index, (table, group) in enumerate(zip(state.tables, groups, strict=True)):
        pays_from = group.decode.sharing_pays_from
        # under speculation the host knows only bounds of what is in pages
        if not pays_from or speculator is not None:
            found.append(None)
            continue
        slots, columns = table.shape[0], table.shape[1] // state.ratio
        page_tokens = group.page_tokens * state.ratio
        found.append(SharedPages(index, slots, columns, page_tokens, pays_from))
    return found
