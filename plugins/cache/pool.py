"""The pages of one KV group of the paged cache, and the runs of them that are cached.

What a page is in, and who holds it, is told page by page in arrays (see `PageArrays`); what is
cached is told run by run. All pages of a run are in one class at any time: who takes or gives back
a part of one has it cut in two first.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from .cached_run import CachedRun, RunsByText
from .eviction_heap import EvictionHeap
from .generations import Generations
from .manager import Gone
from .pages import EVICTABLE, PageArrays, Pages, pages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from camshaft.contracts.cache import CacheSpec, PoolUsage


class Pool:
    """Pages 1 to `total`. Knows nothing of requests but their uids.

    Attributes:
        pages: Their classes, holders, leases and fences.
        runs: The cached ones by number.
        index: And by text.
        evictable: Of these, the unused ones.
        generations: By namespace and version.
        timed: Whether there was ever a run that expires: else nobody has to look.
    """

    def __init__(self, total: int, spec: CacheSpec) -> None:
        """Make a pool of free pages.

        Args:
            total: How many.
            spec: For the eviction policy and the clock.
        """
        self.pages = PageArrays(total)
        self.runs: dict[int, CachedRun] = {}
        self.index = RunsByText(spec.page_tokens)
        self.evictable: EvictionHeap[CachedRun] = EvictionHeap(spec.eviction(), spec.now)
        self.generations = Generations()
        self.timed = False
        self._page_tokens = spec.page_tokens
        self._numbers = 0

    def adopt(self, ids: array[int], uid: int, priority: int = 0) -> None:
        """Give cached pages, in the order of a table, to one more holder.

        Args:
            ids: The pages.
            uid: Of a request.
            priority: Its own.
        """
        if not ids:
            return
        pages = pages_of(ids)
        for run in self._whole_runs(pages):
            run.hits += 1
            run.expires_s = run.until_s
            run.priority = min(run.priority, priority)
            if run in self.evictable:
                self.evictable.remove(run)
        self.pages.adopt(pages, uid)

    def share(self, ids: Sequence[int], uid: int) -> None:
        """Give pages that a table holds to one more holder."""
        pages = pages_of(ids)
        self._whole_runs(pages)
        self.pages.adopt(pages, uid)

    def drop(self, ids: Sequence[int], step: int, now: float, reach: int = 0) -> None:
        """Take pages from one holder each.

        Args:
            ids: In the order of its table.
            step: The newest step that may touch them through this holder.
            now: Seconds.
            reach: Tokens of the holder that were computed.
        """
        if not ids:
            return
        pages = pages_of(ids)
        runs = self._whole_runs(pages)
        self.pages.drop(pages, step)
        holders = self.pages.holders
        # Deepest first, so that policies without an opinion evict them in this order.
        for run in reversed(runs):
            run.reach = max(run.reach, reach)
            if not holders.item(run.ids[0]):
                run.touched_s = now
                self._offer(run)

    def lease(self, ids: Pages) -> None:
        """Keep pages that a table holds from being reused, until `unlease`."""
        self._whole_runs(ids)
        self.pages.lease(ids)

    def unlease(self, ids: Pages) -> None:
        """Undo one `lease` of each page."""
        self._offer_all(self.pages.unlease(ids))

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete."""
        for ids in self.pages.fence(step):
            if len(ids):
                self._offer_all(ids)

    def number(self) -> int:
        """Return a number for a new run."""
        self._numbers += 1
        return self._numbers

    def register(self, runs: Sequence[CachedRun], namespace: bytes, version: int) -> int:
        """Make runs of held pages of one request matchable; none may be so already.

        Returns:
            How many pages.
        """
        if not runs:
            return 0
        self.timed |= runs[0].until_s < inf
        for run in runs:
            self.runs[run.number] = run
            self.index.add(run)
            if namespace:
                self.generations.add(run, namespace, version)
        if len(runs) == 1:  # an answer, mostly
            self.pages.cache(runs[0].ids, runs[0].number)
            return len(runs[0].ids)
        ids = array("i")
        for run in runs:
            ids += run.ids
        numbers = np.repeat([run.number for run in runs], [len(run.ids) for run in runs])
        self.pages.run[pages_of(ids)] = numbers
        return len(ids)

    def unregister(self, runs: Iterable[CachedRun]) -> int:
        """Make runs unmatchable; return of how many pages. Those that nobody uses become free."""
        gone = array("i")
        for run in runs:
            gone += run.ids
            if self.evictable.knows(run):
                self.evictable.discard(run)
            self._forget(run)
        self.pages.uncache(pages_of(gone))
        return len(gone)

    def split(self, run: CachedRun, keep: int) -> CachedRun:
        """Cut a run in two after `keep` pages; return the new first part.

        The policy's opinion stays with the second part, which goes before the first if both can.
        """
        self.index.remove(run)
        cut = run.first + keep
        head = replace(
            run,
            pages=keep,
            number=self.number(),
            text=run.text[: cut * self.index.page_bytes],
            ids=run.ids[:keep],
            after=b"",
            generation=None,
            memo={},
        )
        run.ids = run.ids[keep:]
        run.pages, run.first, run.depth = len(run.ids), cut, run.depth + keep * self._page_tokens
        for one in (head, run):
            self.index.add(one)
        self.runs[head.number] = head
        self.pages.run[pages_of(head.ids)] = head.number
        if run.generation is not None:
            self.generations.add(head, run.generation.key, run.generation.version)
        if run in self.evictable:
            self.evictable.insert(head)
        return head

    def evict(self, count: int) -> Gone:
        """Turn up to `count` evictable pages into free ones, outdated first; return which."""
        going = array("i")
        while len(going) < count and (run := self.generations.outdated()) is not None:
            if run in self.evictable:
                self._shorten(run, count - len(going), going, self.evictable.discard)
            else:
                self.unregister((run,))
        outdated, expired = len(going), 0
        while len(going) < count and (first := self.evictable.first()) is not None:
            before = len(going)
            is_due = self.evictable.is_due(first)
            self._shorten(first, count - before, going, self.evictable.evict)
            expired += is_due * (len(going) - before)
        self.pages.uncache(pages_of(going))
        return Gone(outdated, expired, len(going) - outdated - expired)

    def _shorten(
        self, run: CachedRun, count: int, going: array[int], drop: Callable[[CachedRun], None]
    ) -> None:
        """Move up to `count` pages from the end of an evictable run to `going`.

        If that is all of it, `drop` takes it out of `evictable`.
        """
        keep = len(run.ids) - count
        if keep <= 0:
            going += run.ids
            drop(run)
            self._forget(run)
            return
        going += run.ids[keep:]
        del run.ids[keep:]
        run.pages = keep
        run.text = run.text[: run.end * self.index.page_bytes]
        run.after = b""

    def _forget(self, run: CachedRun) -> None:
        self.index.remove(run)
        del self.runs[run.number]
        run.number = 0
        if run.generation is not None:
            self.generations.remove(run)

    def _whole_runs(self, ids: Pages) -> list[CachedRun]:
        """Return the runs in a part of a table, cutting those in two that are not in it as a whole.

        A run reaches beyond the part, or another text leaves it where the table does.
        """
        whole = []
        for run, place, count in self._stretches(ids):
            if len(run.ids) == count:
                whole.append(run)
                continue
            before = run.ids.index(ids.item(place))
            if before:
                self.split(run, before)
            whole.append(run if len(run.ids) == count else self.split(run, count))
        return whole

    def _stretches(self, ids: Pages) -> list[tuple[CachedRun, int, int]]:
        """Return the runs of pages of a table, in its order: where each begins, and how many."""
        numbers = self.pages.run[ids]
        if not numbers.any():
            return []
        changes = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        found = pairwise((0, *changes, len(ids)))
        here = [(numbers.item(start), start, end - start) for start, end in found]
        return [(self.runs[number], start, count) for number, start, count in here if number]

    def _offer_all(self, ids: Pages) -> None:
        for run, _, _ in reversed(self._stretches(ids)):
            self._offer(run)

    def _offer(self, run: CachedRun) -> None:
        """Let the policy have a run that nobody holds, if it can be had."""
        if self.pages.state.item(run.ids[0]) != EVICTABLE:
            return
        if self.evictable.knows(run):
            self.evictable.touch(run)
        self.evictable.insert(run)
        self.timed |= run.expires_s < inf

    def usage(self) -> PoolUsage:
        """Return how many pages are in each class."""
        return self.pages.usage()
