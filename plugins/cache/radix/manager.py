"""Radix cache: a tree over runs of tokens, of which requests hold paths and leaves are evicted.

Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS
2024 (arXiv 2312.07104), section 3 (RadixAttention). Departures: a page may have any size; the
policy is a component; reuse waits for the steps in flight (see `pool`); and a step that fails
takes back what it wrote (see `trust`).

Pages that a prompt fills become matchable with their step; where another request has computed the
same run, the table gets its pages and the own ones are given back. Pages that generated tokens fill
become matchable when their request is freed or forked, so that a step that only decodes does not
touch the tree.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import (
    EMPTY_DELTA,
    CacheSpec,
    Delta,
    Hit,
    NoSpace,
    PageCopy,
    PoolUsage,
    Prefix,
    TableWrite,
    Wait,
)

from ..checks import check_commit, check_fork, check_shrink, check_spec, keeps_all
from ..manager import PageManager
from .index import RadixIndex
from .integrity import broken_invariants
from .node import Node
from .pool import RadixPool
from .tables import Lease, RadixTables
from .tree import NOTHING_KEPT, Kept, RadixTree
from .trust import Trust

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.cache import GroupKind

    from ..components import RadixSettings


class _Found(NamedTuple):
    """The handle of a hit: for each group a node whose path covers it."""

    epoch: int
    nodes: list[Node]


class Radix(PageManager[RadixTables]):
    """Manages full groups, with a tree for each. See the module.

    Attributes:
        trees: One for each group; each has the group's pool.
        trust: Knows the leases, and takes back what was wrong.
        index: Knows what is matchable.
    """

    def __init__(self, settings: RadixSettings, spec: CacheSpec) -> None:
        """Make a manager whose pages are all free.

        Raises:
            CamshaftError: The spec asks for something that this manager does not do.
        """
        check_spec(spec, "radix", frozenset({"full"}))
        super().__init__(spec)
        self.settings = settings
        self.trees = [
            RadixTree(RadixPool(group.pages, spec), spec.page_tokens) for group in spec.groups
        ]
        self.trust = Trust(self.trees, self.requests, spec.page_tokens)
        self.index = RadixIndex(spec, self.trees, self.trust)
        self._nothing = [NOTHING_KEPT] * len(self.trees)

    @classmethod
    def supports(cls, page_tokens: int, kinds: Collection[GroupKind]) -> list[str]:
        """See `KVManager.supports`. Any page, and only groups that keep all tokens."""
        return keeps_all(kinds)

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. `ready` is a multiple of the page; nothing is ever loading."""
        ready, nodes = self.index.match(prefix, limit)
        return Hit(ready, handle=_Found(self.epoch, nodes)) if ready else Hit(0)

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`.

        Raises:
            ValueError: The hit is stale, too long, or comes for a request that is open.
        """
        tables = self.requests.get(uid)
        if tables is None:
            return self._open(uid, prefix, tokens, hit)
        if hit is not None and hit.ready:
            raise ValueError(f"request {uid} is open: a hit comes with its first allocation")
        first = len(tables.groups[0])
        count = -(-tokens // self._page_tokens) - first
        if count <= 0:
            return EMPTY_DELTA
        for tree in self.trees:
            if len(tree.pool.free) < count:  # else there is nothing to reckon: the usual case
                lacking = self._lacking(count, self._nothing)
                if lacking is not None:
                    return lacking
                break
        writes = []
        for group, table in enumerate(tables.groups):
            taken = self._take(group, count)
            table.extend(taken)
            writes.append(TableWrite(group, first, taken))
        return Delta(tuple(writes))

    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        size = self._page_tokens
        nodes = self._unpack(hit, tokens)
        pages = hit.ready // size if hit is not None else 0
        kept = [tree.kept(node, pages) for tree, node in zip(self.trees, nodes, strict=False)]
        count = -(-tokens // size) - pages
        lacking = self._lacking(count, kept or self._nothing)
        if lacking is not None:
            return lacking
        # Hits leave the evictable pages before new ones are taken, which might evict them.
        if nodes:
            lasts = [tree.hold(node, pages) for tree, node in zip(self.trees, nodes, strict=True)]
        else:
            lasts = self.index.hold_roots(prefix)
        groups = []
        for group, (tree, last) in enumerate(zip(self.trees, lasts, strict=True)):
            tree.serve(last, prefix.priority)
            groups.append(tree.pages_of(last) + self._take(group, count))
        self.requests[uid] = RadixTables(
            uid=uid,
            prefix=prefix,
            groups=groups,
            passed=[0] * len(groups),
            committed=pages * size,
            root=self.index.root(prefix),
            lasts=lasts,
            opened=len(prefix.tokens),
        )
        lost = self.index.see(self.requests[uid], self.requests.values())
        if lost is not None:
            self.epoch += 1
            self._note_all("evicted", lost, "version")
        return _whole(groups)

    def _unpack(self, hit: Hit | None, tokens: int) -> list[Node]:
        if hit is None or not hit.ready:
            return []
        found = hit.handle
        if not isinstance(found, _Found) or found.epoch != self.epoch:
            raise ValueError("the hit is not of the present epoch; match again")
        if hit.ready > tokens:
            raise ValueError(f"the hit brings {hit.ready} tokens to an allocation for {tokens}")
        return found.nodes

    def _lacking(self, count: int, kept: list[Kept]) -> Wait | NoSpace | None:
        """Say what stands in the way of `count` new pages in every pool, or None."""
        ticket = 0
        for place, (tree, stay) in enumerate(zip(self.trees, kept, strict=True)):
            pool = tree.pool
            short = count - pool.available + stay.evictable
            if short <= 0:
                continue
            step = pool.when(short, stay.fenced)
            if step is None:
                coming = pool.coming.total() - sum(stay.fenced.values())
                return NoSpace(place, short - coming)
            ticket = max(ticket, step)
        return Wait(ticket) if ticket else None

    def _take(self, group: int, count: int) -> list[int]:
        """Take pages that were seen to be available."""
        tree = self.trees[group]
        short = count - len(tree.pool.free)
        if short > 0:
            self._note_gone(group, tree.evict(short), "space")
        return tree.pool.take(count)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """See `KVManager.commit`, and the module for when pages become matchable.

        Raises:
            ValueError: The tokens are not known yet, or have no pages.
        """
        tables = self._known(uid)
        if tokens <= tables.committed:
            return EMPTY_DELTA
        check_commit(tables, tokens, self._page_tokens)
        first, full = tables.committed // self._page_tokens, tokens // self._page_tokens
        tables.committed = tokens
        if full == first or not self.spec.prefix:
            return EMPTY_DELTA
        self.trust.note(tables, first, step)
        known = min(tokens, tables.opened) // self._page_tokens
        if known <= first:
            return EMPTY_DELTA
        writes = []
        for group, replaced in enumerate(self._insert(tables, known, merge=True)):
            if replaced:
                self.trees[group].pool.drop(list(replaced.values()), step)
                writes += _writes(group, tables.groups[group], list(replaced))
        return Delta(tuple(writes)) if writes else EMPTY_DELTA

    def _insert(self, tables: RadixTables, full: int, *, merge: bool) -> list[dict[int, int]]:
        """Make a request's first `full` pages matchable.

        Returns:
            For each group what was replaced, see `Inserted`; nothing if they do not become so.
        """
        inserted = self.index.insert(tables, full, merge=merge)
        self._note_all("evicted", [one.lost for one in inserted], "expired")
        self._note_all("stored", [one.stored for one in inserted], "commit")
        return [one.replaced for one in inserted]

    def revoke(self, step: int) -> None:
        """See `KVManager.revoke`. Later steps read what this one should have written: theirs too.

        The requests of these steps stay open, but nothing that they write becomes matchable.
        """
        self._note_all("evicted", self.trust.revoke(step), "revoked")

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`.

        Raises:
            ValueError: `tokens` is less than what is committed.
        """
        tables = self._known(uid)
        check_shrink(tables, tokens)
        keep = -(-tokens // self._page_tokens)
        for tree, table in zip(self.trees, tables.groups, strict=True):
            tree.pool.drop(table[keep:], step)
            del table[keep:]

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """See `KVManager.fork`.

        Raises:
            ValueError: The child is open, its prefix differs before `at`, or the parent has not
                the pages that the child needs.
        """
        source = self._known(parent)
        if child in self.requests:
            raise ValueError(f"request {child} is open already")
        check_fork(self.spec, source, prefix, at)
        full, partial = at // self._page_tokens, at % self._page_tokens > 0
        for place, tree in enumerate(self.trees):
            if partial and not tree.pool.available:
                return NoSpace(place, 1)
        self._insert(source, source.committed // self._page_tokens, merge=False)
        copies, groups, lasts = [], [], []
        for group, (tree, table) in enumerate(zip(self.trees, source.groups, strict=True)):
            last = tree.hold(source.lasts[group], min(full, source.lasts[group].end))
            tree.pool.share(table[last.end : full])
            pages = table[:full]
            if partial:
                pages += self._take(group, 1)
                copies.append(PageCopy(group, table[full], pages[full]))
            groups.append(pages)
            lasts.append(last)
        tables = RadixTables(
            uid=child,
            prefix=prefix,
            groups=groups,
            passed=[0] * len(groups),
            committed=min(at, source.committed),
            trusted=source.trusted,
            root=source.root,
            lasts=lasts,
            opened=len(prefix.tokens),
        )
        self.requests[child] = tables
        self.trust.inherit(source, tables)
        return Delta(_whole(groups).writes, tuple(copies))

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`. What the request wrote and is not in the tree yet goes there.

        Raises:
            LookupError: The request is not open.
        """
        tables = self._known(uid)
        if forget:
            self.distrust(uid)
            tables.trusted = False
        full = tables.committed // self._page_tokens
        replaced = self._insert(tables, full, merge=True)
        del self.requests[uid]
        loose = [table[last.end :] for table, last in zip(tables.groups, tables.lasts, strict=True)]
        for pages, other in zip(loose, replaced, strict=False):
            pages += other.values()
        if hold:
            self._lease(hold, Lease(list(tables.lasts), loose))
        now = self.spec.now()
        for tree, last, pages in zip(self.trees, tables.lasts, loose, strict=True):
            tree.pool.drop(pages, step)
            tree.let_go(last, step, now, tables.committed)

    def distrust(self, uid: int) -> None:
        """See `KVManager.distrust`. Nodes name their writer."""
        self._note_all("evicted", self.trust.distrust(uid), "forgotten")

    def _lease(self, name: str, lease: Lease) -> None:
        for tree, last, pages in zip(self.trees, lease.lasts, lease.loose, strict=True):
            tree.pool.lease(last, 1)
            tree.pool.lease_loose(pages)
        self.trust.leases.setdefault(name, []).append(lease)

    def release(self, lease: str) -> None:
        """See `KVManager.release`.

        Raises:
            LookupError: There is no such lease.
        """
        held = self.trust.leases.pop(lease, None)
        if held is None:
            raise LookupError(f"no lease is called '{lease}', or it has ended")
        for one in held:
            for tree, last, pages in zip(self.trees, one.lasts, one.loose, strict=True):
                tree.pool.lease(last, -1)
                tree.pool.unlease_loose(pages)
                tree.prune(last)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self.trust.fence(step)
        for tree in self.trees:
            tree.pool.fence(step)

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`."""
        return self._note_gone(pool, self.trees[pool].evict(max(0, pages)), "asked")

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        return tuple(tree.pool.usage() for tree in self.trees)

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        return broken_invariants(self)


def _whole(groups: list[list[int]]) -> Delta:
    """Return the delta that sets whole tables."""
    writes = [TableWrite(group, 0, list(table)) for group, table in enumerate(groups) if table]
    return Delta(tuple(writes)) if writes else EMPTY_DELTA


def _writes(group: int, table: list[int], places: list[int]) -> list[TableWrite]:
    """Return a write for each unbroken run of `places`, which rise."""
    runs = groupby(enumerate(places), key=lambda one: one[1] - one[0])
    starts = [[place for _, place in run] for _, run in runs]
    return [TableWrite(group, one[0], table[one[0] : one[-1] + 1]) for one in starts]
