"""Paged KV cache: fixed-size pages with reference counts, reused by hash and content.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023 (arXiv 2309.06180), sections 4.2 to 4.4: page tables, sharing, copy on
write. Departures: pages are found again by a chained hash of all before their unit, and by their
tokens in it (see `cached_run`), so that requests share without being told to; groups with a sliding
window give up what the window has passed; and reuse waits for the steps in flight (see `pages`).
Pages that a prompt fills are registered with their step; those that generated tokens fill when
their request is freed or forked, or a window passes them, so that a step that only decodes does not
touch the index.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from camshaft.contracts.cache import (
    EMPTY_DELTA,
    NULL_PAGE,
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

from .checks import check_commit, check_fork, check_shrink, check_spec
from .integrity import broken_invariants
from .manager import PageManager
from .matching import passed_pages
from .pages import Pages, pages_of
from .pool import Pool
from .prefix_index import PrefixIndex
from .tables import PageTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .components import PagedSettings


_Adopted: TypeAlias = tuple["array[int]", ...]
"""Cached pages of each group."""


class _Found(NamedTuple):
    """The handle of a hit."""

    epoch: int
    pages: _Adopted


class Paged(PageManager[PageTables]):
    """Manages full and sliding groups. See the module, and `pool` for the classes of a page.

    Attributes:
        pools: One for each group.
        leases: By name, the pages of each pool that it holds, request by request.
    """

    def __init__(self, settings: PagedSettings, spec: CacheSpec) -> None:
        """Make a manager whose pages are all free.

        Raises:
            CamshaftError: The spec asks for something that this manager does not do.
        """
        check_spec(spec)
        super().__init__(spec)
        self.settings = settings
        self.pools = [Pool(group.pages, spec) for group in spec.groups]
        unit = -(-settings.unit_tokens // spec.page_tokens)
        self.index = PrefixIndex(spec, self.pools, unit)
        self.leases: dict[str, list[list[Pages]]] = {}
        self._windows = [group.window for group in spec.groups]
        self._sliding = [place for place, window in enumerate(self._windows) if window]
        self._nothing: _Adopted = tuple(array("i") for _ in self.pools)

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. `ready` is a multiple of the page; nothing is ever loading."""
        ready, pages = self.index.match(prefix, limit)
        return Hit(ready, handle=_Found(self.epoch, pages)) if ready else Hit(0)

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
        for pool in self.pools:
            if len(pool.pages.free) < count:  # else there is nothing to reckon: the usual case
                lacking = self._lacking(count, self._nothing)
                if lacking is not None:
                    return lacking
                break
        writes = []
        for group, table in enumerate(tables.groups):
            taken = self._take(group, count, uid)
            table += taken
            writes.append(TableWrite(group, first, taken))
        return Delta(tuple(writes))

    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        size = self._page_tokens
        ready, adopted = self._unpack(hit, tokens)
        count = -(-tokens // size) - ready // size
        lacking = self._lacking(count, adopted)
        if lacking is not None:
            return lacking
        # Hits leave the evictable pages before new ones are taken, which might evict them.
        for pool, kept in zip(self.pools, adopted, strict=True):
            pool.adopt(kept, uid, prefix.priority)
        passed = [passed_pages(ready, window, size) for window in self._windows]
        groups = [
            [*[NULL_PAGE] * passed[group], *kept, *self._take(group, count, uid)]
            for group, kept in enumerate(adopted)
        ]
        if self.index.see(prefix, self.requests.values()):
            self.epoch += 1
        trusted = not self.index.is_outdated(prefix)
        self.requests[uid] = PageTables(
            uid, prefix, groups, passed, ready, ready // size, len(prefix.tokens), trusted=trusted
        )
        return _whole(groups)

    def _unpack(self, hit: Hit | None, tokens: int) -> tuple[int, _Adopted]:
        if hit is None or not hit.ready:
            return 0, self._nothing
        found = hit.handle
        if not isinstance(found, _Found) or found.epoch != self.epoch:
            raise ValueError("the hit is not of the present epoch; match again")
        if hit.ready > tokens:
            raise ValueError(f"the hit brings {hit.ready} tokens to an allocation for {tokens}")
        return hit.ready, found.pages

    def _lacking(self, count: int, adopted: _Adopted) -> Wait | NoSpace | None:
        """Say what stands in the way of `count` new pages in every pool, or None."""
        ticket = 0
        for place, (pool, kept) in enumerate(zip(self.pools, adopted, strict=True)):
            pages = pool.pages
            if count <= len(pages.free):
                continue
            ids = pages_of(kept)
            short = count - pages.available(ids)
            if short <= 0:
                continue
            step = pages.when(short, ids)
            if step is None:
                return NoSpace(place, short - pages.coming(ids))
            ticket = max(ticket, step)
        return Wait(ticket) if ticket else None

    def _take(self, group: int, count: int, uid: int) -> Sequence[int]:
        """Take pages that were seen to be available."""
        pages = self.pools[group].pages
        if count > len(pages.free):
            self._evict(group, count - len(pages.free), "space")
        return [pages.take_one(uid)] if count == 1 else pages.take(count, uid)

    def _evict(self, group: int, count: int, why: str) -> int:
        return self._note_gone(group, self.pools[group].evict(count), why)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """See `KVManager.commit`. Pages with equal content are not merged.

        Raises:
            ValueError: The tokens are not known yet, or have no pages.
        """
        tables = self._known(uid)
        if tokens <= tables.committed:
            return EMPTY_DELTA
        check_commit(tables, tokens, self._page_tokens)
        noted = self.index.note(tables, tokens // self._page_tokens, step)
        tables.committed = tokens
        if noted and (self._sliding or tables.considered * self._page_tokens < tables.opened):
            self._register(tables)
        return self._give_up_passed(tables, step) if self._sliding else EMPTY_DELTA

    def _register(self, tables: PageTables) -> None:
        stored, replaced = self.index.register(tables)
        self._note_all("stored", stored, "commit")
        self._note_all("evicted", replaced, "expired")

    def _give_up_passed(self, tables: PageTables, step: int) -> Delta:
        writes = []
        for group in self._sliding:
            table, first = tables.groups[group], tables.passed[group]
            end = passed_pages(tables.committed, self._windows[group], self._page_tokens)
            if end <= first:
                continue
            self.pools[group].drop(table[first:end], step, self.spec.now(), tables.committed)
            table[first:end] = [NULL_PAGE] * (end - first)
            tables.passed[group] = end
            writes.append(TableWrite(group, first, [NULL_PAGE] * (end - first)))
        return Delta(tuple(writes)) if writes else EMPTY_DELTA

    def revoke(self, step: int) -> None:
        """See `KVManager.revoke`. Later steps read what this one should have written: theirs too.

        The requests of these steps stay open, but nothing that they write becomes matchable.
        """
        self._note_all("evicted", self.index.revoke(step, self.requests.values()), "revoked")

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`.

        Raises:
            ValueError: `tokens` is less than what is committed.
        """
        tables = self._known(uid)
        check_shrink(tables, tokens)
        keep = -(-tokens // self._page_tokens)
        for pool, table in zip(self.pools, tables.groups, strict=True):
            pool.drop(table[keep:], step, self.spec.now(), tables.committed)
            del table[keep:]

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """See `KVManager.fork`.

        Raises:
            ValueError: The child is open, its prefix differs before `at`, or the parent has not
                (or no longer) the pages that the child needs.
        """
        source = self._known(parent)
        if child in self.requests:
            raise ValueError(f"request {child} is open already")
        check_fork(self.spec, source, prefix, at)
        self._register(source)
        full, partial = at // self._page_tokens, at % self._page_tokens > 0
        for place, pool in enumerate(self.pools):
            if partial and not pool.pages.available():
                return NoSpace(place, 1)
        copies, groups = [], []
        for group, (pool, table) in enumerate(zip(self.pools, source.groups, strict=True)):
            pages = table[:full]
            pool.share([page for page in pages if page != NULL_PAGE], child)
            if partial:
                pages += self._take(group, 1, child)
                copies.append(PageCopy(group, table[full], pages[full]))
            groups.append(pages)
        passed = [min(one, full) for one in source.passed]
        tables = PageTables(
            child, prefix, groups, passed, at, full, len(prefix.tokens), trusted=source.trusted
        )
        self.requests[child] = tables
        self.index.inherit(source, tables)
        return Delta(_whole(groups).writes, tuple(copies))

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`.

        Raises:
            LookupError: The request is not open.
        """
        tables = self._known(uid)
        del self.requests[uid]
        if forget:
            self.distrust(uid)
        else:
            self._register(tables)
        places = zip(tables.groups, tables.passed, strict=True)
        pages = [table[passed:] for table, passed in places]
        if hold:
            self._lease(hold, pages)
        now = self.spec.now()
        for pool, dropped in zip(self.pools, pages, strict=True):
            pool.drop(dropped, step, now, tables.committed)

    def distrust(self, uid: int) -> None:
        """See `KVManager.distrust`. Runs name their writer."""
        forgotten = self.index.distrust(uid, self.requests.values())
        self._note_all("evicted", forgotten, "forgotten")

    def _lease(self, name: str, pages: list[list[int]]) -> None:
        held = self.leases.setdefault(name, [[] for _ in self.pools])
        for pool, mine, more in zip(self.pools, held, pages, strict=True):
            ids = pages_of(more)
            pool.lease(ids)
            mine.append(ids)

    def release(self, lease: str) -> None:
        """See `KVManager.release`.

        Raises:
            LookupError: There is no such lease.
        """
        held = self.leases.pop(lease, None)
        if held is None:
            raise LookupError(f"no lease is called '{lease}', or it has ended")
        for pool, pages in zip(self.pools, held, strict=True):
            for ids in pages:
                pool.unlease(ids)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self.index.fence(step)
        for pool in self.pools:
            pool.fence(step)

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`."""
        return self._evict(pool, max(0, pages), "asked")

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        return tuple(pool.usage() for pool in self.pools)

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        return broken_invariants(self)


def _whole(groups: list[list[int]]) -> Delta:
    """Return the delta that sets whole tables."""
    writes = [TableWrite(group, 0, list(table)) for group, table in enumerate(groups) if table]
    return Delta(tuple(writes)) if writes else EMPTY_DELTA
