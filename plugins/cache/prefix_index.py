"""Which pages are matchable, who made them so, and who may still do so."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .cached_run import CachedRun
from .digests import PageDigests
from .doubt import Doubt
from .lookup import ANY_AGE, Age, Lookup
from .pages import ids_of, pages_of
from .text import token_bytes
from .versions import Versions, namespace_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from camshaft.contracts.cache import CacheSpec, Prefix

    from .pool import Pool
    from .tables import PageTables


class PrefixIndex:
    """Finds, registers and forgets pages by their text, in all groups.

    Content is all that counts: a page is found by any request with the same tokens before it.
    When pages turn out to be wrong, so is what was computed from them. Therefore pages that depend
    on forgotten ones are forgotten too, and open requests that may have read them lose their
    trust: nothing that they write later becomes matchable.

    Pages of an outdated version, and pages that are too old, are not found although they are
    registered. What is too old and unused gives way when somebody registers its equal.
    """

    def __init__(self, spec: CacheSpec, pools: Sequence[Pool], unit: int) -> None:
        """Index nothing yet.

        Args:
            spec: What is managed.
            pools: One for each group.
            unit: Pages in a unit of digests.
        """
        self._spec = spec
        self._pools = pools
        self._digests = PageDigests(spec.identity, spec.page_tokens, unit)
        windows = [group.window for group in spec.groups]
        self._lookup = Lookup(pools, windows, self._digests, spec.page_tokens)
        self._versions = Versions()
        self._writers: dict[int, list[PageTables]] = {}  # of unfinished steps
        self._complete = 0  # steps count from 1

    def match(self, prefix: Prefix, limit: int) -> tuple[int, tuple[array[int], ...]]:
        """Return how many leading tokens are cached, at most `limit`, and in which pages.

        The pages of each group leave out those that its window has passed.
        """
        size = self._spec.page_tokens
        most = min(limit, len(prefix.tokens)) // size
        if most < 1 or not self._spec.prefix or self._versions.is_outdated(prefix):
            return 0, ()
        ttl_s = prefix.scope.ttl_s
        timed = ttl_s < inf or any(pool.timed for pool in self._pools)
        age = Age(self._spec.now(), ttl_s) if timed else ANY_AGE
        ready, pages = self._lookup.match(prefix, most, age)
        return ready * size, pages

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

    def units(self, prefix: Prefix, first: int, full: int) -> Iterator[Unit]:
        """Return the units of a text that have pages from `first` on and before `full`."""
        pages, size = self._digests.unit, self._pools[0].index.page_bytes
        data = token_bytes(prefix, full * self._spec.page_tokens)
        for number in range(first // pages, -(-full // pages)):
            start, end = number * pages, min(number * pages + pages, full)
            text = bytes(data[start * size : end * size])
            yield Unit(number, start, self._digests.parent(prefix, number), text)

    def note(self, tables: PageTables, full: int, step: int) -> bool:
        """Note that `step` fills pages of a request up to `full`; True if these can be matched."""
        if full <= tables.considered or not tables.trusted or not self._spec.prefix:
            return False
        if step > self._complete:
            self._writers.setdefault(step, []).append(tables)
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
        units = list(self.units(tables.prefix, tables.considered, full))
        stored, replaced = [], []
        for group, pool in enumerate(self._pools):
            parts = _parts(tables, group, pool, full)
            replaced.append(sum(self._replace(pool, unit, parts, tables) for unit in units))
            runs = [
                self._run(tables, group, unit, first, end)
                for unit in units
                for first, end in _new(pool, unit, parts)
            ]
            key = namespace_key(tables.prefix)
            stored.append(pool.register(runs, key, tables.prefix.scope.version))
        tables.written_by, tables.considered = 0, full
        return stored, replaced

    def _replace(self, pool: Pool, unit: Unit, parts: _Parts, tables: PageTables) -> int:
        """Forget what a unit has in the place of new pages, is too old, and nobody holds."""
        most_s = tables.prefix.scope.ttl_s
        if not parts or (most_s == inf and not pool.timed):
            return 0
        now, gone = self._spec.now(), 0
        start, stop = parts[0][0] - unit.start, parts[-1][1] - unit.start
        for run, same in pool.index.walk(unit.parent, unit.text):
            first, end = max(run.first, start), min(run.first + same, stop)
            held = pool.pages.holders[run.ids[0]]
            if first < end and not held and not run.is_fresh(now, most_s):
                gone += _cut_out(pool, run, first, end)
        return gone

    def _run(self, tables: PageTables, group: int, unit: Unit, first: int, end: int) -> CachedRun:
        since_s, prefix = tables.since_s, tables.prefix
        until_s = since_s + prefix.scope.ttl_s
        start = unit.start + first
        whole = end == self._digests.unit
        return CachedRun(
            pages=end - first,
            depth=start * self._spec.page_tokens,
            created_s=since_s,
            touched_s=since_s,
            priority=prefix.priority,
            expires_s=until_s,
            number=self._pools[group].number(),
            parent=unit.parent,
            text=unit.text[: end * self._pools[group].index.page_bytes],
            first=first,
            ids=ids_of(tables.groups[group][start : unit.start + end]),
            after=self._digests.parent(prefix, unit.number + 1) if whole else b"",
            writer=tables.uid,
            step=tables.written_by,
            until_s=until_s,
        )

    def inherit(self, parent: PageTables, child: PageTables) -> None:
        """Let a fork share the fate of its parent, should an unfinished step be revoked."""
        for writers in self._writers.values():
            if parent in writers:
                writers.append(child)

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete and cannot be revoked any more."""
        self._complete = max(self._complete, step)
        for done in [one for one in self._writers if one <= step]:
            del self._writers[done]

    def revoke(self, step: int, requests: Iterable[PageTables]) -> list[int]:
        """Forget what `step` and later ones, which build on it, made matchable.

        Args:
            step: The one that failed.
            requests: All that are open.

        Returns:
            How many pages were forgotten, for each pool.
        """
        late = [one for one in self._writers if one >= step]
        for tables in [tables for one in late for tables in self._writers.pop(one)]:
            tables.trusted = False
        first = max(step, self._complete + 1)
        return self._forget([run for run in self._runs() if run.step >= first], requests)

    def distrust(self, writer: int, requests: Iterable[PageTables]) -> list[int]:
        """Forget what a request wrote and what builds on it; arguments as in `revoke`."""
        return self._forget([run for run in self._runs() if run.writer == writer], requests)

    def _runs(self) -> Iterator[CachedRun]:
        for pool in self._pools:
            yield from pool.runs.values()

    def _forget(self, wrong: Sequence[CachedRun], requests: Iterable[PageTables]) -> list[int]:
        if not wrong:
            return []
        doubt = Doubt(wrong, self._pools[0].index.page_bytes)
        forgotten = []
        found = doubt.spread(self._runs())
        for pool in self._pools:
            mine = [(run, keep) for run, keep in found if pool.runs.get(run.number) is run]
            for run, keep in mine:
                if keep:
                    pool.split(run, keep)
            forgotten.append(pool.unregister(run for run, _ in mine))
        for tables in requests:
            read = self.units(tables.prefix, 0, tables.considered)
            if any(doubt.place(unit.parent, unit.text) is not None for unit in read):
                tables.trusted = False
        return forgotten


class Unit(NamedTuple):
    """A unit of a request's text, or the part of it that is full pages.

    Attributes:
        number: Units before it.
        start: Pages before it.
        parent: Digest of all before it.
        text: Its tokens.
    """

    number: int
    start: int
    parent: bytes
    text: bytes


_Parts: TypeAlias = "list[tuple[int, int]]"
"""Where pages of a table that are alike begin and end."""


def _parts(tables: PageTables, group: int, pool: Pool, full: int) -> _Parts:
    """Return the pages up to `full` that are to be registered; those of a part are all alike."""
    start = max(tables.considered, tables.passed[group])
    if start >= full:
        return []
    changes = pool.pages.changes(pages_of(tables.groups[group][start:full]))
    return list(pairwise([start, *(start + one for one in changes), full]))


def _new(pool: Pool, unit: Unit, parts: _Parts) -> Iterator[tuple[int, int]]:
    """Return where the pages of some parts begin and end in a unit that has no equals of them."""
    place, end, gaps = 0, len(unit.text) // pool.index.page_bytes, []
    for run, same in pool.index.walk(unit.parent, unit.text):
        gaps.append((place, run.first))
        place = run.first + same
    for first, stop in [*gaps, (place, end)]:
        for start, behind in parts:
            begins, ends = max(first, start - unit.start), min(stop, behind - unit.start)
            if begins < ends:
                yield begins, ends


def _cut_out(pool: Pool, run: CachedRun, first: int, end: int) -> int:
    """Forget pages `first` to `end` of a unit, which are in `run`; return how many."""
    if end < run.end:
        run = pool.split(run, end - run.first)
    if first > run.first:
        pool.split(run, first - run.first)
    return pool.unregister((run,))
