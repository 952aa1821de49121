"""Recounts everything that the paged cache keeps count of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from camshaft.contracts.cache import NULL_PAGE

from .matching import passed_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .paged import Paged
    from .pool import Pool
    from .tables import PageTables


def broken_invariants(cache: Paged) -> list[str]:
    """Return every broken invariant in words. Linear in pages and table entries."""
    broken = []
    for tables in cache.requests.values():
        broken += [f"request {tables.uid}: {one}" for one in _tables(cache, tables)]
    for place, pool in enumerate(cache.pools):
        held = Counter(
            page
            for tables in cache.requests.values()
            for page in tables.groups[place]
            if page != NULL_PAGE
        )
        leased = Counter(page for pages in cache.leases.values() for page in pages[place])
        found = [*_holders(pool, held, leased), *_classes(pool), *_index(pool)]
        broken += [f"pool {place}: {one}" for one in found]
    return broken


def _tables(cache: Paged, tables: PageTables) -> Iterator[str]:
    size = cache.spec.page_tokens
    lengths = [len(table) for table in tables.groups]
    if len(set(lengths)) > 1:
        yield f"its tables have different lengths, {lengths}"
    if not tables.considered * size <= tables.committed <= lengths[0] * size:
        yield f"{tables.considered} full pages, {tables.committed} tokens, {lengths[0]} pages"
    for group in range(len(lengths)):
        for one in _table(cache, tables, group):
            yield f"group {group} {one}"


def _table(cache: Paged, tables: PageTables, group: int) -> Iterator[str]:
    size, window = cache.spec.page_tokens, cache.spec.groups[group].window
    table, passed = tables.groups[group], tables.passed[group]
    if passed > passed_pages(tables.committed, window, size):
        yield f"gave up {passed} pages after {tables.committed} tokens"
    if any(table[:passed]):
        yield f"holds pages that its window has passed: {table[:passed]}"
    held = table[passed:]
    if NULL_PAGE in held or len(set(held)) < len(held):
        yield f"holds a page twice, or the null page: {held}"
    digests = cache.index.digests(tables.prefix, tables.considered)
    for place, digest in enumerate(digests):
        cached = cache.pools[group].cached.get(table[place])
        if cached is not None and cached.digest != digest:
            yield f"holds page {table[place]} at {place}, which is cached for other tokens"


def _holders(pool: Pool, held: Counter[int], leased: Counter[int]) -> Iterator[str]:
    for page in range(1, pool.total + 1):
        if pool.holders[page] != held[page]:
            yield f"page {page} counts {pool.holders[page]} holders, {held[page]} tables hold it"
    if pool.leases != leased:
        yield f"leases count {dict(pool.leases)} and hold {dict(leased)}"
    beyond = [page for page in {*held, *leased} if not 1 <= page <= pool.total]
    if beyond:
        yield f"pages {beyond} are held and do not exist"


def _classes(pool: Pool) -> Iterator[str]:
    """Check that every page is in exactly one class, and the counts with it."""
    classes: dict[str, list[int]] = {
        "free": pool.free,
        "evictable": [one.page for one in pool.evictable],
        "fenced": list(pool.fenced),
        "leased": [page for page in pool.leases if not pool.holders[page]],
        "in use": [page for page in range(1, pool.total + 1) if pool.holders[page]],
    }
    seen = Counter(page for pages in classes.values() for page in pages)
    for page in range(1, pool.total + 1):
        if seen[page] != 1:
            names = [name for name, pages in classes.items() if page in pages]
            yield f"page {page} is {' and '.join(names) or 'lost'}"
    usage = pool.usage()
    counts = {name: len(pages) for name, pages in classes.items()}
    if usage[1:] != (
        counts["free"],
        counts["evictable"],
        counts["in use"],
        counts["fenced"] + counts["leased"],
    ):
        yield f"it reports {usage} and has {counts}"
    early = [page for page in [*pool.free, *classes["evictable"]] if not _is_quiet(pool, page)]
    if early:
        yield f"pages {early} may still be touched by steps in flight, and can be had"


def _is_quiet(pool: Pool, page: int) -> bool:
    return pool.newest[page] <= pool.complete


def _index(pool: Pool) -> Iterator[str]:
    for page, cached in pool.cached.items():
        if cached.page != page or pool.index.get(cached.digest) is not cached:
            yield f"page {page} is cached, but cannot be found by its digest"
    if len(pool.index) != len(pool.cached):
        yield f"{len(pool.index)} digests lead to {len(pool.cached)} cached pages"
    unknown = [one.page for one in pool.evictable if pool.cached.get(one.page) is not one]
    if unknown:
        yield f"pages {unknown} are evictable, but not cached"
    known = Counter(one for pages in pool.generations.all_pages() for one in pages)
    named = [one for one in pool.cached.values() if one.generation is not None]
    if known != Counter(named):
        yield f"{len(named)} cached pages have a generation, {known.total()} are in one"
    overdue = [page for page, step in pool.fenced.items() if step <= pool.complete]
    if overdue:
        yield f"pages {overdue} wait for steps that are complete"
