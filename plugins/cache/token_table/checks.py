"""A recount of everything that the token table keeps count of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ..pages import (
    CLASSES,
    EVICTABLE,
    FENCED,
    FREE,
    HELD,
    LEASED,
    PageArrays,
    pages_of,
)
from .requests import text_of
from .runs import path_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .requests import OpenRequest
    from .run_table import RunTable
    from .runs import Run, RunTree


def broken_invariants(cache: RunTable) -> list[str]:
    """Return every broken invariant in words. Linear in pages and table entries."""
    broken = []
    for group, pool in enumerate(cache.pools):
        held = Counter(page for one in cache.requests.values() for page in one.holds[group].table)
        leased = Counter(
            page for leases in pool.leases.values() for ids in leases for page in ids.tolist()
        )
        found = [
            *_classes(pool.pages, held, leased),
            *_tree(pool.tree, cache.spec.page_tokens),
            *(
                one
                for request in cache.requests.values()
                for one in _request(cache, request, group)
            ),
        ]
        broken += [f"pool {group}: {one}" for one in found]
    return broken


def _classes(pages: PageArrays, held: Counter[int], leased: Counter[int]) -> Iterator[str]:
    """Check that every page is in the class that its holders and fences put it in."""
    free = Counter(pages.free)
    for page in range(1, pages.total + 1):
        state, right = int(pages.state[page]), _class_of(pages, page, held[page], leased[page])
        if state != right:
            yield f"page {page} is {CLASSES[state]}, and should be {CLASSES[right]}"
        counts = int(pages.holders[page]), int(pages.leases[page]), free[page]
        if counts != (held[page], leased[page], int(right == FREE)):
            yield f"page {page} counts {counts} holders, leases and times that it is free"
    beyond = [page for page in {*held, *leased, *free} if not 1 <= page <= pages.total]
    if beyond:
        yield f"pages {beyond} are known and do not exist"
    counted = np.bincount(pages.state[1:], minlength=len(CLASSES)).tolist()
    if counted != pages.counts:
        yield f"it counts {pages.counts} pages in the classes {CLASSES}, which have {counted}"


def _class_of(pages: PageArrays, page: int, holders: int, leases: int) -> int:
    if holders or leases:
        return HELD if holders else LEASED
    if pages.newest[page] > pages.complete:
        return FENCED
    return EVICTABLE if pages.run[page] else FREE


def _tree(tree: RunTree, page_tokens: int) -> Iterator[str]:
    """Check that each run is where it can be found, and each cached page in one of them."""
    runs = list(tree.roots.values())
    for run in runs:
        runs.extend(run.children.values())
        for key, child in run.children.items():
            if child.parent is not run or child.first != run.first + len(run.ids):
                yield f"run {child.number} does not stand behind its parent"
            if key != child.text[:page_tokens].tobytes():
                yield f"run {child.number} cannot be found"
    found = [run for run in runs if run.number]
    if len(tree.runs) != len(found):
        yield f"{len(tree.runs)} runs are known, {len(found)} are in trees"
    for run in found:
        yield from _run(tree, run, page_tokens)
    seen = Counter(page for run in found for page in run.ids)
    lost = set(np.flatnonzero(tree.pages.run).tolist()) ^ set(seen)
    if lost or len(seen) < seen.total():
        yield f"pages are in several runs: {seen.most_common(1)}, or in none that knows: {lost}"


def _run(tree: RunTree, run: Run, page_tokens: int) -> Iterator[str]:
    """Check that unused pages are at the end, and that the heap has those that can go."""
    number, pages = run.number, tree.pages
    if tree.runs.get(number) is not run:
        yield f"run {number} is in a tree and not known"
    if not run.ids or len(run.text) != len(run.ids) * page_tokens:
        yield f"run {number} has {len(run.text)} tokens and {len(run.ids)} pages"
    ids = pages_of(run.ids)
    if (pages.run[ids] != number).any():
        yield f"pages {run.ids.tolist()} of run {number} belong to {pages.run[ids].tolist()}"
    unused = pages.state[ids] == EVICTABLE
    if (np.diff(unused.astype(np.int8)) < 0).any():
        yield f"run {number} has unused pages before used ones: {pages.state[ids].tolist()}"
    if unused[-1] and any(pages.state[one.ids[0]] != EVICTABLE for one in run.children.values()):
        yield f"run {number} is unused, and what is behind it is not"
    if (not run.children and bool(unused[-1])) != (run in tree.evictable):
        yield f"run {number} can be evicted, or is to be, but not both"


def _request(cache: RunTable, request: OpenRequest, group: int) -> Iterator[str]:
    name, held, pool = f"request {request.uid}", request.holds[group], cache.pools[group]
    if len(held.table) != request.pages:
        yield f"{name} has tables of different lengths"
    if not held.considered <= len(held.table) or request.committed > len(held.table) * (
        cache.spec.page_tokens
    ):
        yield f"{name}: {held.considered} of {len(held.table)} pages, {request.committed} tokens"
    if held.foreign != pool.pages.foreign(pages_of(held.table), request.uid):
        yield f"{name} counts {held.foreign} pages that it does not own"
    if request.trusted:
        path, place = pool.tree.walk(request.root, text_of(request.prefix), held.considered)
        if path_pages(path, place).tolist() != held.table[: held.considered].tolist():
            yield f"{name} does not hold the pages of the tree up to {held.considered}"
