"""One pool of the token table: pages, and the tree of what is cached in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..pages import PageArrays, Pages, pages_of
from ..versions import namespace_key
from .requests import text_of
from .runs import Run, RunTree, Writing, path_pages

if TYPE_CHECKING:
    from array import array

    from camshaft.contracts.cache import CacheSpec

    from .requests import Hold, OpenRequest


class Cut(NamedTuple):
    """Cached pages that were forgotten.

    Attributes:
        pages: How many.
        place: Pages before the first of them, in every table that holds it.
        first: The first of them.
    """

    pages: int
    place: int
    first: int


class TokenPool:
    """Keeps pages and tree in step.

    Attributes:
        pages: Classes, holders and fences.
        tree: What is cached.
        leases: By name, the pages that it holds, request by request.
        replaced: Pages that were too old and gave way to their equals, since somebody asked.
    """

    def __init__(self, total: int, spec: CacheSpec) -> None:
        """Make a pool of `total` free pages."""
        self.pages = PageArrays(total)
        self.tree = RunTree(self.pages, spec)
        self.leases: dict[str, list[Pages]] = {}
        self.replaced = 0
        self._page_tokens = spec.page_tokens
        self._now = spec.now

    def adopt(self, path: list[Run], ids: Pages, uid: int, priority: int) -> None:
        """Give the pages `ids` along `path` to one more holder, a request of this priority."""
        self.pages.adopt(ids, uid)
        for run in path:
            run.hits += 1
            run.priority = min(run.priority, priority)
            run.expires_s = run.until_s
        self.tree.review(path[-1:])  # only the last can be a leaf

    def drop(self, ids: Pages, step: int, now: float, reach: int) -> None:
        """Take a request's pages back, in the order of its table; see `PageArrays.drop`.

        Args:
            ids: Its pages.
            step: The newest step that may touch them through it.
            now: Seconds.
            reach: Tokens of it that were computed.
        """
        self.pages.drop(ids, step)
        runs = list(self.tree.runs_of(ids))
        for run in runs:
            run.touched_s = now
            run.reach = max(run.reach, reach)
            if run in self.tree.evictable:  # for the pages at its end, which it did not hold
                self.tree.evictable.touch(run)
        self.tree.review(runs)

    def lease(self, name: str, ids: Pages) -> None:
        """Let a lease hold pages until `release`."""
        self.pages.lease(ids)
        self.leases.setdefault(name, []).append(ids)

    def release(self, name: str) -> None:
        """End a lease.

        Raises:
            LookupError: There is none of that name.
        """
        if name not in self.leases:
            raise LookupError(f"no lease is called '{name}', or it has ended")
        for ids in self.leases.pop(name):
            self.tree.review(self.tree.runs_of(self.pages.unlease(ids)))

    def fence(self, step: int) -> None:
        """See `PageArrays.fence`."""
        for ids in self.pages.fence(step):
            self.tree.review(self.tree.runs_of(ids))

    def enter(self, request: OpenRequest, held: Hold, full: int) -> int:
        """Cache a request's pages up to `full`; return how many are new.

        Where the tree has a page for the same tokens already, the request is set apart.
        """
        text, start = text_of(request.prefix), held.considered
        run = held.run
        if run is not None and run.ends_at(start) and run.writer == request.uid:
            self.tree.extend(run, text, held.table[start:full])  # the usual case
            held.considered = full
            return full - start
        run, place = self.tree.follow(self._last(request, held), start, text, full)
        if place > start and _pages_before(run, start, place) != held.table[start:place]:
            if not self._replace(run, start, request):
                held.apart = True
                return 0
            return self.enter(request, held, full)
        if place < full:
            run = self._branch(request, run, place, text, held.table[place:full])
        held.run, held.considered = run, full
        return full - place

    def _replace(self, run: Run, start: int, request: OpenRequest) -> bool:
        """Forget the first run on the path to `run`, from page `start` on, if it is too old."""
        while run.first > start:
            assert run.parent is not None
            run = run.parent
        keep = start - run.first
        now, most_s = self._now(), request.prefix.scope.ttl_s
        if run.is_fresh(now, most_s) or self.pages.holders[run.ids[keep]]:
            return False
        self.replaced += self.tree.cut(run, keep)
        return True

    def _last(self, request: OpenRequest, held: Hold) -> Run:
        """Return the run of the last page considered, or the root."""
        run = held.run
        while run is not None and run.number and held.considered <= run.first:
            run = run.parent  # it was cut in two
        return run if run is not None and run.number else self._root(request)

    def _root(self, request: OpenRequest) -> Run:
        return self.tree.open(request.root, namespace_key(request.prefix))

    def _branch(
        self, request: OpenRequest, run: Run, place: int, text: array[int], ids: array[int]
    ) -> Run:
        """Put pages behind page `place`, which is in or right behind `run`."""
        if place - run.first < len(run.ids):
            run = self.tree.split(run, place - run.first)
        size = self._page_tokens
        tokens = text[place * size : (place + len(ids)) * size]
        prefix = request.prefix
        writing = Writing(request.uid, prefix.priority, request.since_s, prefix.scope.ttl_s)
        return self.tree.add(run, tokens, ids, writing)

    def join(self, request: OpenRequest, held: Hold, full: int, step: int) -> int:
        """Cache what a request that ends wrote apart from the tree; return how many pages.

        What comes before in the tree waits for `step` like the pages themselves, although the
        request read its own copy of it: no page may outlive what is before it.
        """
        text = text_of(request.prefix)
        path, place = self.tree.walk(request.root, text, full)
        ids = held.table[place:full]
        new = pages_of(ids)
        if not ids or (self.pages.holders[new] > 1).any() or self.pages.leases[new].any():
            return 0
        self.pages.read(path_pages(path, place), step)
        self.tree.review(path)
        self._branch(request, path[-1] if path else self._root(request), place, text, ids)
        return len(ids)

    def forget(self, request: OpenRequest, held: Hold, first: int) -> Cut | None:
        """Forget the first page from `first` on that is the request's and in the tree.

        With it goes what is behind it. None if there is no such page.
        """
        text = text_of(request.prefix)
        most = min(len(text) // self._page_tokens, len(held.table))
        path, place = self.tree.walk(request.root, text, most)
        cached = path_pages(path, place)
        same = np.flatnonzero((cached == pages_of(held.table[:place]))[first:])
        if not len(same):
            return None
        start = first + int(same[0])
        run = next(one for one in path if start < one.first + len(one.ids))
        return Cut(self.tree.cut(run, start - run.first), start, int(cached[start]))


def _pages_before(run: Run, start: int, place: int) -> array[int]:
    """Return the pages `start` to `place` of the path that ends in `run`."""
    found = run.ids[max(0, start - run.first) : place - run.first]
    while start < run.first:
        assert run.parent is not None
        run = run.parent
        found = run.ids[max(0, start - run.first) :] + found
    return found
