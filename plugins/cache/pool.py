"""The pages of one KV group: who holds them, which are cached, and what they wait for.

Each page is in one class at any time, in this order of precedence:

    in use     a table holds it, any number of times
    leased     no table does, a lease does                       counted as pinned
    fenced     nobody does, but a step that may touch it is not
               known to be complete; cached or not               counted as pinned
    evictable  cached and unused
    free       holds nothing

So `free + evictable` is what can be had at once, and a page is never given out before its fence,
cached or not. Cached pages can be adopted from any class.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from camshaft.contracts.cache import PoolUsage
from camshaft.contracts.eviction import Entry
from camshaft.eviction_heap import EvictionHeap

from .generations import Generations
from .manager import Gone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from camshaft.contracts.cache import CacheSpec

    from .generations import Generation


@dataclass(slots=True, eq=False, kw_only=True)
class CachedPage(Entry):
    """A full page that later requests may reuse.

    Attributes:
        page: Its id.
        digest: Of its tokens and all before them.
        parent: Digest of the page before it.
        writer: Uid of the request that wrote it.
        until_s: When it becomes too old to be served, whatever the policy says.
        generation: The pages of the same version of its namespace, if it has one.
        unit: Of the last page of a unit (see `PageDigests`), those before it; fewer if some were
            not cached. They may have been evicted since.
    """

    page: int
    digest: bytes
    parent: bytes
    writer: int
    until_s: float = inf
    generation: Generation | None = None
    unit: tuple[CachedPage, ...] = ()

    def is_fresh(self, now: float, most_s: float) -> bool:
        """Whether it may be served now to a request that takes pages of `most_s` seconds."""
        return self.expires_s > now and self.created_s > now - most_s


class Pool:
    """Pages 1 to `total`. Knows nothing of requests, groups or tokens.

    Attributes:
        generations: Its pages by namespace and version.
        timed: Whether there was ever a page that expires: else nobody has to look.
    """

    def __init__(self, total: int, spec: CacheSpec) -> None:
        """Make a pool of free pages.

        Args:
            total: How many.
            spec: For the eviction policy and the clock.
        """
        self.total = total
        self.free = list(range(total, 0, -1))
        self.holders = [0] * (total + 1)
        self.newest = [0] * (total + 1)
        self.leases: Counter[int] = Counter()
        self.fenced: dict[int, int] = {}
        self.cached: dict[int, CachedPage] = {}
        self.index: dict[bytes, CachedPage] = {}
        self.evictable: EvictionHeap[CachedPage] = EvictionHeap(spec.eviction(), spec.now)
        self.generations = Generations()
        self.timed = False
        self.complete = 0  # steps count from 1
        self._due: dict[int, list[int]] = {}
        self._leased = 0

    def available(self, kept: Collection[CachedPage] = ()) -> int:
        """Return how many pages can be had at once if the cached pages `kept` stay."""
        room = len(self.free) + len(self.evictable)
        return room - sum(map(self.evictable.__contains__, kept)) if kept else room

    def when(self, short: int, kept: Collection[CachedPage] = ()) -> int | None:
        """Return the step whose completion frees `short` pages, or None if none does."""
        stay = {one.page for one in kept}
        coming = Counter(step for page, step in self.fenced.items() if page not in stay)
        for step in sorted(coming):
            short -= coming[step]
            if short <= 0:
                return step
        return None

    def coming(self, kept: Collection[CachedPage] = ()) -> int:
        """Return how many pages wait for a fence and for nothing else, without `kept`."""
        return len(self.fenced) - sum(1 for one in kept if one.page in self.fenced)

    def take(self, count: int) -> list[int]:
        """Give `count` free pages to one holder. The caller has seen that there are so many."""
        free, holders = self.free, self.holders
        if count == 1:
            page = free.pop()
            holders[page] = 1
            return [page]
        taken = [free.pop() for _ in range(count)]
        for page in taken:
            holders[page] = 1
        return taken

    def adopt(self, pages: Iterable[CachedPage], priority: int = 0) -> None:
        """Give cached pages to one more holder each, a request of this priority."""
        holders, leases, fenced, evictable = self.holders, self.leases, self.fenced, self.evictable
        for cached in pages:
            page = cached.page
            cached.hits += 1
            cached.expires_s = cached.until_s
            if priority < cached.priority:
                cached.priority = priority
            holders[page] += 1
            if holders[page] > 1:
                continue
            if page in leases:
                self._leased -= 1
            elif fenced.pop(page, None) is None:
                evictable.remove(cached)

    def share(self, pages: Sequence[int]) -> None:
        """Give pages that a table holds to one more holder."""
        for page in pages:
            self.holders[page] += 1

    def drop(self, pages: Sequence[int], step: int, now: float, reach: int = 0) -> None:
        """Take pages from one holder each.

        Args:
            pages: Deepest first, so that policies without an opinion evict them in this order.
            step: The newest step that may touch them through this holder.
            now: Seconds.
            reach: Tokens of the holder that were computed.
        """
        holders, newest, known = self.holders, self.newest, self.cached
        for page in pages:
            if newest[page] < step:
                newest[page] = step
            holders[page] -= 1
            cached = known.get(page)
            if cached is not None and cached.reach < reach:
                cached.reach = reach
            if holders[page]:
                continue
            if cached is not None:
                cached.touched_s = now
            if page in self.leases:
                self._leased += 1
            else:
                self._await_fence(page)

    def lease(self, pages: Sequence[int]) -> None:
        """Keep pages that a table holds from being reused, until `unlease`."""
        self.leases.update(pages)

    def unlease(self, pages: Sequence[int]) -> None:
        """Undo one `lease` of each page."""
        for page in pages:
            self.leases[page] -= 1
            if self.leases[page]:
                continue
            del self.leases[page]
            if not self.holders[page]:
                self._leased -= 1
                self._await_fence(page)

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete."""
        self.complete = max(self.complete, step)
        for due in [one for one in self._due if one <= step]:
            for page in self._due.pop(due):
                # Adopted in the meantime: the page waits under another step, or not at all.
                if self.fenced.get(page) == due:
                    del self.fenced[page]
                    self._retire(page)

    def register(self, cached: CachedPage) -> None:
        """Make a held page matchable. Neither it nor its digest may be registered."""
        self.index[cached.digest] = self.cached[cached.page] = cached
        self.timed |= cached.until_s < inf

    def unregister(self, cached: CachedPage) -> None:
        """Make a cached page unmatchable; it becomes free if it was evictable."""
        was_evictable = cached in self.evictable
        if self.evictable.knows(cached):
            self.evictable.discard(cached)
        self._forget(cached)
        if was_evictable:
            self.free.append(cached.page)

    def evict(self, count: int) -> Gone:
        """Turn up to `count` evictable pages into free ones, outdated first; return which."""
        outdated = self._evict_outdated(count)
        expired, pop, is_due = 0, self.evictable.pop, self.evictable.is_due
        evicted: list[int] = []
        while len(evicted) < count - outdated and (cached := pop()) is not None:
            expired += is_due(cached)
            self._forget(cached)
            evicted.append(cached.page)
        self.free += evicted
        return Gone(outdated, expired, len(evicted) - expired)

    def _evict_outdated(self, count: int) -> int:
        """The same, for pages whose namespace has a newer version; return how many became free."""
        free = len(self.free)
        while len(self.free) - free < count:
            cached = self.generations.next_outdated()
            if cached is None:
                break
            self.unregister(cached)
        return len(self.free) - free

    def usage(self) -> PoolUsage:
        """Return how many pages are in each class."""
        free, evictable = len(self.free), len(self.evictable)
        pinned = len(self.fenced) + self._leased
        in_use = self.total - free - evictable - pinned
        return PoolUsage(self.total, free, evictable, in_use, pinned)

    def _await_fence(self, page: int) -> None:
        """Place a page that nobody holds any more."""
        step = self.newest[page]
        if step <= self.complete:
            self._retire(page)
            return
        self.fenced[page] = step
        self._due.setdefault(step, []).append(page)

    def _retire(self, page: int) -> None:
        """Place a page that nobody holds and nothing touches."""
        cached = self.cached.get(page)
        if cached is None:
            self.free.append(page)
            return
        if self.evictable.knows(cached):
            self.evictable.touch(cached)
        self.evictable.insert(cached)
        self.timed |= cached.expires_s < inf

    def _forget(self, cached: CachedPage) -> None:
        del self.index[cached.digest]
        del self.cached[cached.page]
        if cached.generation is not None:
            self.generations.remove(cached)
