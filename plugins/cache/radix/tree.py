"""A radix tree over runs of pages, for one KV group.

Runs are compared as bytes: a walk costs a look-up for each node and one comparison of memory, not
work for each token or page, and does not depend on how much is cached.

A request *holds the path* to one node, its `last`: its table begins with the pages of this path.
So whoever holds a node holds all above it, what is unused can always be evicted leaf by leaf, and
an evicted page is never missed by one behind it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ..manager import Gone
from ..text import TOKEN_BYTES
from .families import Families
from .node import Node, Standing, covering, path_up, subtree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .pool import RadixPool


class Kept(NamedTuple):
    """Pages of a path that count as room unless it is adopted.

    Attributes:
        evictable: Those that can be had at once.
        fenced: For each step, those that wait for it.
    """

    evictable: int
    fenced: Mapping[int, int]


NOTHING_KEPT = Kept(0, {})


class RadixTree:
    """Nodes by content; `pool` accounts for their pages.

    Attributes:
        pool: The pages.
        roots: By the digest of what isolates.
        families: The roots by namespace.
        page_tokens: Tokens in a page.
        page_bytes: Length of its tokens as bytes.
    """

    def __init__(self, pool: RadixPool, page_tokens: int) -> None:
        self.pool = pool
        self.roots: dict[bytes, Node] = {}
        self.families = Families()
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * TOKEN_BYTES

    def walk(
        self, name: bytes, data: bytearray, most: int, now: float = -inf, most_s: float = inf
    ) -> tuple[Node | None, int]:
        """Find the longest cached prefix.

        Args:
            name: Of the root.
            data: Tokens as bytes, of at least `most` pages.
            most: Pages to find.
            now: Seconds; without it age is no matter.
            most_s: Age of the oldest page that will do.

        Returns:
            The node that holds the last page found, and how many pages were found.
        """
        node, found, size = self.roots.get(name), 0, self.page_bytes
        while node is not None and found < most:
            child = node.children.get(bytes(data[found * size : (found + 1) * size]))
            if child is None or not child.is_fresh(now, most_s):
                break
            node = child
            found += self.common(child, data, most)
            if found < child.end:
                break
        return node, found

    def common(self, node: Node, data: bytearray, most: int) -> int:
        """Return how many pages of a run stand in `data`, of which `most` pages count."""
        size, start, count = self.page_bytes, node.first * self.page_bytes, len(node.run)
        key = self.key_of(node)
        if node.end <= most and data.startswith(key, start):
            return count
        low, high = 0, min(count, most - node.first)
        while low < high:
            middle = (low + high + 1) // 2
            here = slice(start + low * size, start + middle * size)
            if data[here] == key[low * size : middle * size]:
                low = middle
            else:
                high = middle - 1
        return low

    def key_of(self, node: Node) -> bytes:
        """Return the tokens of a run as bytes."""
        wanted = len(node.run) * self.page_bytes
        if len(node.key) > wanted:
            node.key = node.key[:wanted]
        return node.key

    def kept(self, node: Node, pages: int) -> Kept:
        """Return what adopting `pages` pages of the path to `node` takes from the room."""
        evictable, fenced = 0, Counter[int]()
        for one in path_up(covering(node, pages)):
            mine = min(one.end, pages) - one.first
            if one.standing is Standing.EVICTABLE:
                evictable += mine
            elif one.standing is Standing.FENCED:
                fenced[one.newest] += mine
        return Kept(evictable, fenced)

    def hold_root(self, name: bytes, namespace: bytes, version: int) -> Node:
        """Hold the empty path of a root for one more request; it is made where there is none."""
        root = self.roots.get(name)
        if root is None:
            root = self.roots[name] = Node(key=name, pages=0)
            self.families.add(name, namespace, version)
        self.pool.lock(root)
        return root

    def hold(self, node: Node, pages: int) -> Node:
        """Hold the first `pages` pages of the path to `node` for one more request.

        Returns:
            The last node of the path, which ends there: it is split if it must be.
        """
        last = covering(node, pages)
        if last.end > pages:
            last = self.split(last, pages - last.first)
        self.pool.lock(last)
        return last

    def serve(self, last: Node, priority: int) -> None:
        """Count a hit of a request of this priority on every node of a path."""
        for node in path_up(last):
            node.hits += 1
            node.priority = min(node.priority, priority)

    def let_go(self, last: Node, step: int, now: float, reach: int) -> None:
        """Undo one `hold`; arguments as of `RadixPool.unlock`."""
        self.pool.unlock(last, step, now, reach)
        self.prune(last)

    def split(self, node: Node, pages: int) -> Node:
        """Cut a node in two; return the upper one, of `pages` pages. The lower stays itself."""
        size, parent, key = self.page_bytes, node.parent, self.key_of(node)
        assert parent is not None, "a root has no pages"
        assert 0 < pages < len(node.run), "a cut is inside a run"
        upper = replace(
            node, pages=pages, key=key[: pages * size], run=node.run[:pages], children={}, memo={}
        )
        parent.children[upper.key[:size]] = upper
        if upper.standing is Standing.FENCED:
            self.pool.fenced_nodes[upper.newest].append(upper)
        node.key, node.run, node.parent = key[pages * size :], node.run[pages:], upper
        node.first += pages
        node.depth += pages * self.page_tokens
        node.pages -= pages
        upper.children[node.key[:size]] = node
        return upper

    def evict(self, count: int) -> Gone:
        """Turn up to `count` evictable pages into free ones, from the ends of leaves."""
        expired, chosen, pool = 0, 0, self.pool
        while (left := count - expired - chosen) > 0:
            node = pool.evictable.first()
            if node is None:
                break
            going = min(left, len(node.run))
            if pool.evictable.is_due(node):
                expired += going
            else:
                chosen += going
            if going < len(node.run):
                self._trim(node, going)
                break
            pool.evictable.evict(node)
            pool.loosen(node)
            self._cut_off(node)
        return Gone(expired=expired, chosen=chosen)

    def outdate(self, namespace: bytes, version: int) -> int:
        """Detach all of a namespace that is older than `version`; return how many pages."""
        roots = [self.roots[name] for name in self.families.older(namespace, version)]
        return sum(self.detach(child) for root in roots for child in list(root.children.values()))

    def _trim(self, node: Node, pages: int) -> None:
        """Free the last pages of an evictable leaf; the policy's opinion of it stays."""
        keep = len(node.run) - pages
        self.pool.free.extend(node.run[keep:])
        self.pool.counts[Standing.EVICTABLE] -= pages
        del node.run[keep:]
        node.pages = keep
        # Page after page is evicted where requests decode: tokens are copied only now and then.
        if len(node.key) > 2 * keep * self.page_bytes:
            self.key_of(node)

    def detach(self, node: Node) -> int:
        """Take a node and all below it out of the tree; return how many pages these are.

        Whoever holds a path through it has to be told: see `Standing.GONE`.
        """
        pages = 0
        for one in list(subtree(node)):
            pages += len(one.run)
            self.pool.loosen(one)
        self._cut_off(node)
        return pages

    def detach_from(self, node: Node, place: int) -> int:
        """Detach what stands at page `place` of a node's run and behind it."""
        if place > node.first:
            self.split(node, place - node.first)
        return self.detach(node)

    def _cut_off(self, node: Node) -> None:
        """Unlink a node that is gone; its parent may become a leaf, or one with its last child."""
        parent = node.parent
        assert parent is not None, "a root has no pages"
        del parent.children[node.key[: self.page_bytes]]
        self.pool.offer(parent)
        if len(parent.children) == 1:
            self._join(parent)
        self.prune(parent)

    def _join(self, upper: Node) -> None:
        """Join a node to its only child where nothing tells them apart."""
        (lower,) = upper.children.values()
        parent = upper.parent
        same = (
            upper.writer == lower.writer
            and upper.standing is lower.standing
            and upper.standing in {Standing.USED, Standing.EVICTABLE}
            and (upper.locks, upper.touched_s) == (lower.locks, lower.touched_s)
            and not upper.leases
            and not lower.leases
        )
        if parent is None or not same:
            return
        lower.key, lower.run = self.key_of(upper) + self.key_of(lower), upper.run + lower.run
        lower.first, lower.depth, lower.parent = upper.first, upper.depth, parent
        lower.pages += upper.pages
        lower.hits = max(lower.hits, upper.hits)
        lower.newest = max(lower.newest, upper.newest)
        lower.created_s = min(lower.created_s, upper.created_s)
        lower.until_s = min(lower.until_s, upper.until_s)
        lower.expires_s = min(lower.expires_s, upper.expires_s)
        parent.children[lower.key[: self.page_bytes]] = lower
        if self.pool.evictable.knows(upper):
            self.pool.evictable.discard(upper)
        upper.standing = Standing.GONE

    def prune(self, node: Node) -> None:
        """Drop the root of a path if nobody needs it."""
        *_, root = path_up(node)
        idle = not (root.children or root.locks or root.leases)
        if idle and self.roots.get(root.key) is root:
            del self.roots[root.key]
            self.families.remove(root.key)

    def nodes(self) -> Iterator[Node]:
        """Iterate over all nodes but roots, parents first."""
        for root in self.roots.values():
            for child in root.children.values():
                yield from subtree(child)

    def pages_of(self, last: Node) -> list[int]:
        """Return the pages of the path to a node, first to last."""
        pages: list[int] = []
        for node in reversed(list(path_up(last))):
            pages += node.run
        return pages
