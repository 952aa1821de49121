"""Which pages are matchable, who made them so, and who may still do so."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING

from camshaft.contracts.cache import NULL_PAGE

from .digests import UNIT, PageDigests
from .matching import longest_match, passed_pages
from .pool import CachedPage
from .versions import Versions, namespace_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from camshaft.contracts.cache import CacheSpec, Prefix

    from .pool import Pool
    from .tables import PageTables


@dataclass(slots=True)
class _StepLog:
    """What the commits of an unfinished step did, in case it has to be revoked.

    Attributes:
        writers: The requests that it filled pages of.
        digests: Of the pages that became matchable.
    """

    writers: list[PageTables] = field(default_factory=list)
    digests: set[bytes] = field(default_factory=set)


class _Fresh:
    """The digests of pages that may be served to a request."""

    __slots__ = ("_index", "_most_s", "_now")

    def __init__(self, index: Mapping[bytes, CachedPage], now: float, most_s: float) -> None:
        self._index = index
        self._now = now
        self._most_s = most_s

    def __contains__(self, digest: object) -> bool:
        cached = self._index.get(digest)  # type: ignore[call-overload]
        return cached is not None and cached.is_fresh(self._now, self._most_s)


class PrefixIndex:
    """Finds, registers and forgets pages by digest, in all groups.

    Content is all that counts: a page is found by any request with the same tokens before it.
    When pages turn out to be wrong, so is what was computed from them. Therefore pages that depend
    on forgotten ones are forgotten too, and open requests that may have read them lose their
    trust: nothing that they write later becomes matchable.

    Pages of an outdated version, and pages that are too old, are not found although they are
    registered. What is too old and unused gives way when somebody registers its equal.
    """

    def __init__(self, spec: CacheSpec, pools: Sequence[Pool]) -> None:
        self._spec = spec
        self._pools = pools
        self._digests = PageDigests(spec.identity, spec.page_tokens)
        self._windows = [group.window for group in spec.groups]
        self._indexes = [pool.index for pool in pools]
        self._versions = Versions()
        self._unfinished: dict[int, _StepLog] = {}
        self._complete = 0  # steps count from 1

    def digests(self, prefix: Prefix, pages: int) -> list[bytes]:
        """Return the digests of the first `pages` pages, which are full."""
        return self._digests.of(prefix, pages)[:pages]

    def match(self, prefix: Prefix, limit: int) -> tuple[int, tuple[list[CachedPage], ...]]:
        """Return how many leading tokens are cached, at most `limit`, and in which pages.

        The pages of each group leave out those that its window has passed.
        """
        size = self._spec.page_tokens
        most = min(limit, len(prefix.tokens)) // size
        if most < 1 or not self._spec.prefix or self._versions.is_outdated(prefix):
            return 0, ()
        if self._windows == [0]:
            return self._match_whole(prefix, most)
        digests = self._digests.of(prefix, most)
        ready, found = self._longest(self._indexes, digests, most)
        if prefix.scope.ttl_s < inf or any(pool.timed for pool in self._pools):
            now = self._spec.now()
            oldest = now - prefix.scope.ttl_s
            # Mostly all are fresh: a look at each is a tenth of asking `_Fresh` for each.
            if any(
                one.expires_s <= now or one.created_s <= oldest for pages in found for one in pages
            ):
                fresh = [_Fresh(index, now, prefix.scope.ttl_s) for index in self._indexes]
                ready, found = self._longest(fresh, digests, most)
        return ready, found

    def _match_whole(self, prefix: Prefix, most: int) -> tuple[int, tuple[list[CachedPage], ...]]:
        """Match in one full group, unit by unit, and hash no more than that takes."""
        found: list[CachedPage] = []
        while len(found) < most:
            unit = self._unit(prefix, len(found) // UNIT, most - len(found))
            found += unit
            if len(unit) < UNIT:
                break
        if prefix.scope.ttl_s < inf or self._pools[0].timed:
            now = self._spec.now()
            fresh = takewhile(lambda one: one.is_fresh(now, prefix.scope.ttl_s), found)
            found = list(fresh)
        return len(found) * self._spec.page_tokens, (found,)

    def _unit(self, prefix: Prefix, unit: int, most: int) -> list[CachedPage]:
        """Return the leading pages of a unit, at most so many, that are cached."""
        index, cached = self._pools[0].index, self._pools[0].cached
        if most >= UNIT:
            last = index.get(self._digests.end(prefix, unit))
            before = last.unit if last is not None else ()
            if last and len(before) == UNIT - 1 and all(cached.get(x.page) is x for x in before):
                return [*before, last]
        pages: list[CachedPage] = []
        for digest in self._digests.within(prefix, unit, most):
            found = index.get(digest)
            if found is None:
                break
            pages.append(found)
        return pages

    def _longest(
        self, held: Sequence[Container[bytes]], digests: list[bytes], most: int
    ) -> tuple[int, tuple[list[CachedPage], ...]]:
        size = self._spec.page_tokens
        length = longest_match(held, self._windows, digests, most, size)
        pages = tuple(
            [index[one] for one in digests[passed_pages(length * size, window, size) : length]]
            for index, window in zip(self._indexes, self._windows, strict=True)
        )
        return length * size, pages

    def see(self, prefix: Prefix, requests: Iterable[PageTables]) -> bool:
        """Note that a request is opened; True if that outdates pages of its namespace.

        Args:
            prefix: Of the request.
            requests: All that are open. Those of older versions write nothing matchable any more.
        """
        if not self._versions.see(prefix):
            return False
        for pool in self._pools:
            pool.generations.outdate(namespace_key(prefix), prefix.scope.version)
        for tables in requests:
            tables.trusted &= not self._versions.is_outdated(tables.prefix)
        return True

    def is_outdated(self, prefix: Prefix) -> bool:
        """Whether a newer version of the prefix's namespace was seen."""
        return self._versions.is_outdated(prefix)

    def note(self, tables: PageTables, full: int, step: int) -> bool:
        """Note that `step` fills pages of a request up to `full`; True if these can be matched."""
        if full <= tables.considered or not tables.trusted or not self._spec.prefix:
            return False
        if step > self._complete:
            self._unfinished.setdefault(step, _StepLog()).writers.append(tables)
        if not tables.written_by:
            tables.since_s = self._spec.now()
        tables.written_by = step
        return True

    def register(self, tables: PageTables) -> tuple[Sequence[int], Sequence[int]]:
        """Make the pages of a request that were noted, and are full, matchable.

        A page whose equal is registered is left alone: nothing is remapped. Only if the equal is
        too old and nobody holds it, it is replaced.

        Returns:
            How many became matchable, and how many were replaced, for each pool.
        """
        full = tables.committed // self._spec.page_tokens
        if not tables.written_by or not tables.trusted:
            return (), ()
        log = self._unfinished.get(tables.written_by) or _StepLog()
        tables.written_by = 0
        digests = self._digests.of(tables.prefix, full)
        now, scope = self._spec.now(), tables.prefix.scope
        stored, replaced = [0] * len(self._pools), [0] * len(self._pools)
        for group, pool in enumerate(self._pools):
            table = tables.groups[group]
            for place in range(tables.considered, full):
                page, digest = table[place], digests[place]
                if page == NULL_PAGE:
                    continue
                equal = pool.index.get(digest)
                if equal is not None:
                    if equal.is_fresh(now, scope.ttl_s) or pool.holders[equal.page]:
                        continue
                    pool.unregister(equal)
                    replaced[group] += 1
                cached = self._cached(tables, page, place, digests)
                if place % UNIT == UNIT - 1:
                    before = map(pool.index.get, digests[place - UNIT + 1 : place])
                    cached.unit = tuple(one for one in before if one is not None)
                self._add(pool, cached, tables.prefix)
                log.digests.add(digest)
                stored[group] += 1
        tables.considered = full
        return stored, replaced

    @staticmethod
    def _add(pool: Pool, cached: CachedPage, prefix: Prefix) -> None:
        pool.register(cached)
        if prefix.scope.namespace:
            pool.generations.add(cached, namespace_key(prefix), prefix.scope.version)

    def _cached(
        self, tables: PageTables, page: int, place: int, digests: list[bytes]
    ) -> CachedPage:
        since_s = tables.since_s
        until_s = since_s + tables.prefix.scope.ttl_s
        return CachedPage(
            expires_s=until_s,
            until_s=until_s,
            depth=place * self._spec.page_tokens,
            created_s=since_s,
            touched_s=since_s,
            priority=tables.prefix.priority,
            page=page,
            digest=digests[place],
            parent=digests[place - 1] if place else b"",
            writer=tables.uid,
        )

    def inherit(self, parent: PageTables, child: PageTables) -> None:
        """Let a fork share the fate of its parent, should an unfinished step be revoked."""
        for log in self._unfinished.values():
            if parent in log.writers:
                log.writers.append(child)

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete and cannot be revoked any more."""
        self._complete = max(self._complete, step)
        for done in [one for one in self._unfinished if one <= step]:
            del self._unfinished[done]

    def revoke(self, step: int, requests: Iterable[PageTables]) -> list[int]:
        """Forget what `step` and later ones, which build on it, made matchable.

        Args:
            step: The one that failed.
            requests: All that are open.

        Returns:
            How many pages were forgotten, for each pool.
        """
        digests: set[bytes] = set()
        for late in [one for one in self._unfinished if one >= step]:
            log = self._unfinished.pop(late)
            digests |= log.digests
            for tables in log.writers:
                tables.trusted = False
        return self._forget(digests, requests)

    def distrust(self, writer: int, requests: Iterable[PageTables]) -> list[int]:
        """Forget what a request wrote and what builds on it; arguments as in `revoke`."""
        everything = [one for pool in self._pools for one in pool.cached.values()]
        digests = {one.digest for one in everything if one.writer == writer}
        # By depth, so that a parent is judged before its children.
        for one in sorted(everything, key=lambda one: one.depth):
            if one.parent in digests:
                digests.add(one.digest)
        return self._forget(digests, requests)

    def _forget(self, digests: set[bytes], requests: Iterable[PageTables]) -> list[int]:
        if not digests:
            return []
        for tables in requests:
            if not digests.isdisjoint(self.digests(tables.prefix, tables.considered)):
                tables.trusted = False
        forgotten = []
        for pool in self._pools:
            found = [pool.index[digest] for digest in digests if digest in pool.index]
            for one in found:
                pool.unregister(one)
            forgotten.append(len(found))
        return forgotten
