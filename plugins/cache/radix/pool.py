"""The pages of one KV group under a radix tree, and what they wait for.

A page is in the run of one node, or *loose*: in the tables of requests, in leases, or in none. Runs
are accounted for as a whole (see `Standing`): a request locks the path of nodes that it reads, and
nothing is counted page by page. Loose pages have one holder and no record, unless a fork, a lease
or a node that was taken out of the tree makes them special.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from camshaft.contracts.cache import PoolUsage

from ..eviction_heap import EvictionHeap
from .node import Node, Standing, path_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from camshaft.contracts.cache import CacheSpec


@dataclass(slots=True)
class Special:
    """A loose page that has not just one holder.

    Attributes:
        holders: Tables that hold it.
        leases: Leases that do.
        newest: The newest step that may touch it through somebody who let go.
    """

    holders: int = 1
    leases: int = 0
    newest: int = 0


class RadixPool:
    """Pages 1 to `total`, by what keeps them.

    Attributes:
        free: Pages that hold nothing.
        counts: Pages of nodes, for each standing.
        evictable: The evictable nodes without children.
        special: Loose pages with a record.
        coming: Fenced pages, of nodes and loose, for each step that they wait for.
        complete: The last step that is; they count from 1.
        timed: Whether there was ever a node that expires: else nobody has to look.
    """

    def __init__(self, total: int, spec: CacheSpec) -> None:
        """Make a pool of free pages.

        Args:
            total: How many.
            spec: For the eviction policy and the clock.
        """
        self.total = total
        self.free = list(range(total, 0, -1))
        self.counts = [0] * len(Standing)
        self.evictable: EvictionHeap[Node] = EvictionHeap(spec.eviction(), spec.now)
        self.special: dict[int, Special] = {}
        self.coming: Counter[int] = Counter()
        self.complete = 0
        self.timed = False
        self.fenced_nodes: dict[int, list[Node]] = {}
        self.fenced_pages: dict[int, list[int]] = {}

    @property
    def available(self) -> int:
        """Pages that can be had at once."""
        return len(self.free) + self.counts[Standing.EVICTABLE]

    def take(self, count: int) -> list[int]:
        """Give out `count` free pages. The caller has seen that there are so many."""
        free = self.free
        if count == 1:
            return [free.pop()]
        taken = free[: -count - 1 : -1]
        del free[len(free) - count :]
        return taken

    def when(self, short: int, kept: Mapping[int, int]) -> int | None:
        """Return the step whose completion frees `short` pages, or None if none does.

        Args:
            short: How many.
            kept: Of the fenced pages those that do not count, for each step.
        """
        for step in sorted(self.coming):
            short -= self.coming[step] - kept.get(step, 0)
            if short <= 0:
                return step
        return None

    def usage(self) -> PoolUsage:
        """Return how many pages are in each class."""
        free, evictable = len(self.free), self.counts[Standing.EVICTABLE]
        leased = sum(not one.holders for one in self.special.values()) if self.special else 0
        pinned = leased + self.counts[Standing.LEASED] + self.coming.total()
        in_use = self.total - free - evictable - pinned
        return PoolUsage(self.total, free, evictable, in_use, pinned)

    def place(self, node: Node) -> None:
        """Give a node of the tree the standing that it deserves."""
        if node.locks:
            standing = Standing.USED
        elif node.leases:
            standing = Standing.LEASED
        elif node.newest > self.complete:
            standing = Standing.FENCED
        else:
            standing = Standing.EVICTABLE
        if standing is node.standing:
            return
        self.leave(node)
        node.standing = standing
        self.counts[standing] += len(node.run)
        if standing is Standing.FENCED:
            self.coming[node.newest] += len(node.run)
            self.fenced_nodes.setdefault(node.newest, []).append(node)
        self.offer(node)

    def leave(self, node: Node) -> None:
        """Take a node out of its standing; the caller gives it another."""
        self.counts[node.standing] -= len(node.run)
        if node.standing is Standing.FENCED:
            self._came(node.newest, len(node.run))
        elif node in self.evictable:
            self.evictable.remove(node)

    def offer(self, node: Node) -> None:
        """Let the policy have a node that is evictable and a leaf, unless it has it already."""
        if (
            node.standing is Standing.EVICTABLE
            and not node.children
            and node.run
            and node not in self.evictable
        ):
            self.evictable.insert(node)
            self.timed |= node.expires_s < inf

    def lock(self, last: Node) -> None:
        """Hold the path to a node for one more request."""
        for node in path_up(last):
            self.lock_one(node)

    def lock_one(self, node: Node) -> None:
        """Hold a node for one more request that holds its parents already."""
        node.locks += 1
        node.expires_s = node.until_s
        if node.locks == 1:
            self.place(node)

    def unlock(self, last: Node, step: int, now: float, reach: int) -> None:
        """Undo one `lock`.

        Args:
            last: The node.
            step: The newest step that may touch the path through this request.
            now: Seconds.
            reach: Tokens of the request that were computed.
        """
        for node in path_up(last):
            node.newest = max(node.newest, step)
            node.reach = max(node.reach, reach)
            node.locks -= 1
            if node.locks:
                continue
            node.touched_s = now
            if self.evictable.knows(node):
                self.evictable.touch(node)
            self.place(node)

    def lease(self, last: Node, change: int) -> None:
        """Begin (1) or end (-1) a lease of the path to a node."""
        for node in path_up(last):
            node.leases += change
            self.place(node)

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete."""
        self.complete = max(self.complete, step)
        for due in [one for one in self.fenced_pages if one <= step]:
            pages = self.fenced_pages.pop(due)
            self._came(due, len(pages))
            self.free.extend(pages)
        for due in [one for one in self.fenced_nodes if one <= step]:
            for node in self.fenced_nodes.pop(due):
                # Locked in the meantime: it waits under another step, or not at all.
                if node.standing is Standing.FENCED and node.newest <= step:
                    self.place(node)

    def share(self, pages: Sequence[int]) -> None:
        """Give loose pages to one more holder."""
        for page in pages:
            self.special.setdefault(page, Special()).holders += 1

    def lease_loose(self, pages: Sequence[int]) -> None:
        """Keep loose pages that a table holds until `unlease_loose`."""
        for page in pages:
            self.special.setdefault(page, Special()).leases += 1

    def unlease_loose(self, pages: Sequence[int]) -> None:
        """Undo one `lease_loose` of each page."""
        for page in pages:
            special = self.special[page]
            special.leases -= 1
            self._judge(page, special)

    def drop(self, pages: Sequence[int], step: int) -> None:
        """Take loose pages from one holder each, through which `step` may still touch them."""
        if not self.special:
            self.let_go(pages, step)
            return
        plain = [page for page in pages if page not in self.special]
        for page in pages:
            special = self.special.get(page)
            if special is not None:
                special.newest = max(special.newest, step)
                special.holders -= 1
                self._judge(page, special)
        self.let_go(plain, step)

    def claimable(self, pages: Sequence[int]) -> int:
        """Return how many leading ones of a request's loose pages nobody else has to do with."""
        if self.special:
            for place, page in enumerate(pages):
                special = self.special.get(page)
                if special is not None and (special.holders > 1 or special.leases):
                    return place
        return len(pages)

    def claim(self, pages: Sequence[int]) -> int:
        """Take claimable pages for a node; return the newest step that may touch them."""
        if not self.special:
            return 0
        found = [self.special.pop(page) for page in pages if page in self.special]
        return max((one.newest for one in found), default=0)

    def loosen(self, node: Node) -> None:
        """Make the pages of a node loose, for those who hold its path; it is gone."""
        if self.evictable.knows(node):
            self.evictable.discard(node)
        self.leave(node)
        node.standing = Standing.GONE
        if not node.locks and not node.leases:
            self.let_go(node.run, node.newest)
        elif node.locks != 1 or node.leases or node.newest > self.complete:
            for page in node.run:
                self.special[page] = Special(node.locks, node.leases, node.newest)

    def let_go(self, pages: Sequence[int], step: int) -> None:
        """Free pages that nobody holds once `step` is complete."""
        if step <= self.complete:
            self.free.extend(pages)
        elif pages:
            self.coming[step] += len(pages)
            self.fenced_pages.setdefault(step, []).extend(pages)

    def _judge(self, page: int, special: Special) -> None:
        if not special.holders and not special.leases:
            del self.special[page]
            self.let_go([page], special.newest)

    def _came(self, step: int, pages: int) -> None:
        self.coming[step] -= pages
        if not self.coming[step]:
            del self.coming[step]
