"""Recounts everything that the paged cache keeps count of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.cache import NULL_PAGE

from .matching import passed_pages
from .pages import CLASSES, EVICTABLE, FENCED, FREE, HELD, LEASED, pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .cached_run import CachedRun
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
        leases = [ids for lease in cache.leases.values() for ids in lease[place]]
        leased = Counter(page for ids in leases for page in ids.tolist())
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
    pool = cache.pools[group]
    cached = {page: run for run in pool.index for page in run.ids}
    for unit in cache.index.units(tables.prefix, 0, tables.considered):
        for place, page in enumerate(table[unit.start : tables.considered]):
            run, end = cached.get(page), (place + 1) * pool.index.page_bytes
            if run is None or end > len(unit.text):
                continue
            same = run.parent == unit.parent and run.text[:end] == unit.text[:end]
            if not same or run.ids[place - run.first] != page:
                yield f"holds page {page} at {unit.start + place}, which is cached for other tokens"


def _holders(pool: Pool, held: Counter[int], leased: Counter[int]) -> Iterator[str]:
    holders, leases = pool.pages.holders.tolist(), pool.pages.leases.tolist()
    for page in range(1, pool.pages.total + 1):
        if holders[page] != held[page]:
            yield f"page {page} counts {holders[page]} holders, {held[page]} tables hold it"
        if leases[page] != leased[page]:
            yield f"page {page} counts {leases[page]} leases, it has {leased[page]}"
    beyond = [page for page in {*held, *leased} if not 1 <= page <= pool.pages.total]
    if beyond:
        yield f"pages {beyond} are held and do not exist"


def _classes(pool: Pool) -> Iterator[str]:
    """Check that every page is in the one class that it should be in, and the counts with it."""
    pages = pool.pages
    rest = np.where(pages.run > 0, EVICTABLE, FREE)
    rest = np.where(pages.newest > pages.complete, FENCED, rest)
    rest = np.where(pages.leases > 0, LEASED, rest)
    deserved = np.where(pages.holders > 0, HELD, rest).tolist()
    state, free = pages.state.tolist(), Counter(pages.free)
    for page in range(1, pages.total + 1):
        name = CLASSES[state[page]]
        if state[page] != deserved[page]:
            yield f"page {page} is {name}, it should be {CLASSES[deserved[page]]}"
        if free[page] != (state[page] == FREE):
            yield f"page {page} is {name}, and {free[page]} times among the free ones"
    counts = [state[1:].count(one) for one in range(len(CLASSES))]
    if counts != pages.counts:
        yield f"it counts {pages.counts} pages in its classes and has {counts}"


def _run(pool: Pool, number: int, run: CachedRun) -> Iterator[str]:
    name = f"the run of pages {run.ids.tolist()}"
    if pool.index.units.get(run.parent, {}).get(pool.index.key(run)) is not run:
        yield f"{name} is cached, but cannot be found by its text"
    if run.number != number or (pool.pages.run[pages_of(run.ids)] != number).any():
        yield f"{name} is not what they say that they are in"
    if len(run.text) != run.end * pool.index.page_bytes or run.pages != len(run.ids):
        yield f"{name} has {len(run.text)} bytes of text"
    if pool.pages.changes(pages_of(run.ids)):
        yield f"{name} is held, leased or fenced in part"
    if (run in pool.evictable) != (pool.pages.state[run.ids[0]] == EVICTABLE):
        yield f"{name} can be evicted if and only if it must not"


def _index(pool: Pool) -> Iterator[str]:
    for number, run in pool.runs.items():
        yield from _run(pool, number, run)
    numbered = int(np.count_nonzero(pool.pages.run))
    cached = sum(len(run.ids) for run in pool.index)
    if numbered != cached:
        yield f"{numbered} pages have a run, and {cached} are in one that can be found"
    known = Counter(one for runs in pool.generations.all_runs() for one in runs)
    named = [one for one in pool.runs.values() if one.generation is not None]
    if known != Counter(named):
        yield f"{len(named)} cached runs have a generation, {known.total()} are in one"
