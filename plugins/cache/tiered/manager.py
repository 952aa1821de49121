"""A KV manager with tiers below the device, around any other manager.

The inner manager has the device's pages and does not know of tiers. This one sees what passes by,
request by request: texts and page tables. Units, which are whole pages, are copied out as they fill
and kept in the nearest tier; what is evicted later is not lost. A waiting request whose text goes
on in a tier has it read into host memory first. Then it gets its pages as any other, the core is
told that they are ready, and they are filled in the order of the layers while its step begins.

Source of the idea: Gao et al., "Cost-Efficient Large Language Model Serving for Multi-turn
Conversations with CachedAttention", USENIX ATC 2024 (arXiv 2403.19708): tiers below the device,
layer-wise loading, prefetching by the scheduler's queue. Departures: pages go down as they are
computed, so eviction never waits; tiers hold prefixes by content, not conversations; and what comes
slower than it could be computed is computed.

Pages of a time to live stay on the device, where their age is known. Groups with a window are kept
and loaded whole, as the others are.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import Delta, Hit, KVManager, Wait

from ..versions import Versions
from .below import Below
from .checks import broken_invariants
from .load import Load, Phase
from .tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import CacheEvent, CacheSpec, NoSpace, PoolUsage, Prefix
    from camshaft.contracts.moves import Moved, Moves

    from ..components import TieredSettings

_MEMO = "load from tiers"
_MOST_TRIES = 3
"""Loads for one admission: what a load goes on from may be evicted meanwhile."""


class _Arrived(NamedTuple):
    """The handle of a hit that goes on in a load.

    Attributes:
        load: What was fetched.
        hit: Of the inner manager, the part on the device.
        end: Number of the unit behind the last that is used.
    """

    load: Load
    hit: Hit
    end: int


class Tiered(KVManager):
    """See the module.

    Attributes:
        inner: Has the pages of the device.
        requests: What is known of open requests, by uid.
        below: The tiers.
    """

    has_tiers = True

    def __init__(self, settings: TieredSettings, spec: CacheSpec) -> None:
        """Make the inner manager, the stores and the trays.

        Raises:
            CamshaftError: One of them cannot be made.
        """
        self.settings = settings
        self.spec = spec
        self.inner: KVManager = settings.over.build(spec)
        self.below = Below(settings, spec, self._fits)
        self.requests: dict[int, Tables] = {}
        self._unit = self.below.units.tokens
        self._slides = any(group.window for group in spec.groups)
        self._versions = Versions()
        self._tries: Counter[int] = Counter()
        self._newest = 0

    @property
    def epoch(self) -> int:  # type: ignore[override]  # the contract has an attribute
        """See `KVManager.epoch`: of the inner one, and of what has been fetched."""
        return self.inner.epoch + self.below.loads.changes

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. What was fetched for this very request counts as ready."""
        hit = self.inner.match(prefix, limit)
        if not self._uses_tiers(prefix):
            return hit
        load: Load | None = prefix.memo.get(_MEMO)
        if load is not None and load.phase is not Phase.OVER:
            found = self._with_load(load, prefix, limit, hit)
            if found is not None:
                return found
        sources = self._sources(prefix, limit, hit)[1]
        if not sources:
            return hit
        loading = self._start(hit) + len(sources) * self._unit - hit.ready
        return Hit(hit.ready, loading, hit.handle)

    def _uses_tiers(self, prefix: Prefix) -> bool:
        if not self.spec.prefix or prefix.scope.ttl_s < inf:
            return False
        return not self._versions.is_outdated(prefix)

    def _start(self, hit: Hit) -> int:
        return hit.ready // self._unit * self._unit

    def _sources(self, prefix: Prefix, limit: int, hit: Hit) -> tuple[list[bytes], list[int]]:
        """Return the units behind a hit that tiers hold and that are worth loading."""
        below = self.below
        first, end = hit.ready // self._unit, min(limit, len(prefix.tokens)) // self._unit
        if first >= end:
            return [], []
        keys = below.units.keys(prefix, end)[first:end]
        sources = below.tiers.sources(keys)
        tokens = len(sources) * self._unit - hit.ready % self._unit
        is_free = self.settings.load == "always" or not sources
        if is_free or below.pace.is_worth(sources, tokens, self.spec.now()):
            return keys[: len(sources)], sources
        return [], []

    def _with_load(self, load: Load, prefix: Prefix, limit: int, hit: Hit) -> Hit | None:
        """Return the hit of a request that has a load; None if that goes on from nothing."""
        if load.is_coming:
            coming = (load.first + len(load.keys)) * self._unit
            return Hit(hit.ready, max(0, min(coming, limit) - hit.ready), hit.handle)
        end = min(load.end, limit // self._unit)
        if end * self._unit <= hit.ready:
            return hit
        if hit.ready % self._unit:  # its first unit is filled as a whole, into pages of its own
            hit = self.inner.match(prefix, self._start(hit))
        if hit.ready % self._unit or hit.ready < load.first * self._unit:
            return None
        return Hit(end * self._unit, handle=_Arrived(load, hit, end))

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`. A request whose text goes on in a tier waits for it once."""
        tables = self.requests.get(uid)
        if tables is not None:
            result = self.inner.allocate(uid, prefix, tokens, hit)
            if isinstance(result, Delta):
                tables.apply(result)
            return result
        if hit is not None and hit.loading:
            ticket = self._awaited(uid, prefix, hit)
            if ticket:
                return Wait(-ticket)
        arrived = hit.handle if hit is not None and isinstance(hit.handle, _Arrived) else None
        if arrived is not None:
            return self._land(uid, prefix, tokens, arrived)
        result = self.inner.allocate(uid, prefix, tokens, hit)
        if isinstance(result, Delta):
            self._opened(uid, prefix, result, hit.ready if hit is not None else 0)
            self._end_load(uid)
        return result

    def _awaited(self, uid: int, prefix: Prefix, hit: Hit, *, at_once: bool = False) -> int:
        """Return the ticket of a load that is under way, begun now if it must be; 0 if none is."""
        loads = self.below.loads
        load = loads.of(uid)
        if load is not None and load.is_coming:
            return load.ticket if loads.is_coming(load.ticket) else 0
        if self._tries[uid] >= _MOST_TRIES:
            return 0
        if load is not None:
            loads.drop(load)
        keys, sources = self._sources(prefix, hit.ready + hit.loading, hit)
        if not sources:
            return 0
        self._tries[uid] += 1
        first = hit.ready // self._unit
        load = loads.begin(uid, prefix, first, keys, sources, at_once=at_once)
        prefix.memo[_MEMO] = load
        return load.ticket

    def _fits(self, units: int) -> bool:
        pages = units * self.below.units.pages
        return all(one.free + one.evictable >= pages for one in self.inner.usage())

    def _land(
        self, uid: int, prefix: Prefix, tokens: int, arrived: _Arrived
    ) -> Delta | Wait | NoSpace:
        """Open a request and have what was fetched for it copied into its pages."""
        load, hit, end = arrived
        if load.phase is not Phase.FETCHED or load.uid != uid:
            raise ValueError("the hit is not of the present epoch, or of another request")
        ready = end * self._unit
        if ready > tokens:
            raise ValueError(f"the hit brings {ready} tokens to an allocation for {tokens}")
        result = self.inner.allocate(uid, prefix, tokens, hit)
        if not isinstance(result, Delta):
            return result
        tables = self._opened(uid, prefix, result, hit.ready)
        first = hit.ready // self._unit
        self.below.land(load, tables, first, end)
        prefix.memo.pop(_MEMO, None)
        tables.considered = end
        more = self._commit(tables, ready, self._newest)
        return Delta((*result.writes, *more.writes), result.copies)

    def _opened(self, uid: int, prefix: Prefix, delta: Delta, ready: int) -> Tables:
        groups: list[list[int]] = [[] for _ in self.spec.groups]
        tables = Tables(uid, prefix, groups, committed=ready, own_from=ready)
        tables.apply(delta)
        self.requests[uid] = tables
        self._tries.pop(uid, None)
        self.below.hits["device"] += ready
        if self._versions.see(prefix):
            for one in self.requests.values():
                one.trusted &= not self._versions.is_outdated(one.prefix)
        tables.trusted = self._uses_tiers(prefix)
        found = ready // self._unit
        if prefix.scope.namespace or not tables.trusted:
            tables.considered = found  # what others computed may have had a time to live
        else:
            self.below.exports.offer(tables, found)
        return tables

    def _end_load(self, uid: int) -> None:
        load = self.below.loads.of(uid)
        if load is not None:
            self.below.loads.drop(load)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """See `KVManager.commit`. Full units may leave for the tiers from now on."""
        self._newest = max(self._newest, step)
        tables = self.requests.get(uid)
        if tables is None:
            return self.inner.commit(uid, tokens, step)  # which says that it is unknown
        before = tables.committed
        delta = self._commit(tables, tokens, step)
        if tokens > before:
            self.below.pace.computes(tokens - before, step, self.spec.now())
        return delta

    def _commit(self, tables: Tables, tokens: int, step: int) -> Delta:
        full, before = tokens // self._unit, tables.committed // self._unit
        leaves, pages = full > before and tables.trusted, []
        if leaves and self._slides:  # what a window has passed leaves the tables with the commit
            units = range(tables.considered, full)
            pages = [tables.unit(self.below.units, unit) for unit in units]
        delta = self.inner.commit(tables.uid, tokens, step)
        tables.apply(delta)
        tables.committed = max(tables.committed, tokens)
        if leaves:
            self.below.trust.note(tables, before, full, step)
            self.below.exports.offer(tables, full, pages)
            if pages:
                self.below.exports.last_call(tables)
        return delta

    def revoke(self, step: int) -> None:
        """See `KVManager.revoke`."""
        self.inner.revoke(step)
        self.below.forget(self.below.trust.revoke(step, self.requests.values()))

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`."""
        self.inner.shrink(uid, tokens, step)
        self._newest = max(self._newest, step)
        keep = -(-tokens // self.spec.page_tokens)
        for table in self.requests[uid].groups:
            del table[keep:]

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """See `KVManager.fork`."""
        result = self.inner.fork(parent, child, prefix, at)
        if isinstance(result, Delta):
            source = self.requests[parent]
            groups: list[list[int]] = [[] for _ in self.spec.groups]
            tables = Tables(child, prefix, groups, min(at, source.committed), source.own_from)
            tables.considered, tables.trusted = at // self._unit, source.trusted
            tables.apply(result)
            self.requests[child] = tables
            self.below.trust.inherit(source, tables)
        return result

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`. What it computed and no tier has leaves before the next launch."""
        self.inner.free(uid, step, hold=hold, forget=forget)
        self._newest = max(self._newest, step)
        tables = self.requests.pop(uid)
        if forget:
            tables.trusted = False
            self.below.forget(self.below.trust.forget(tables, self.requests.values()))
        self.below.exports.last_call(tables)

    def release(self, lease: str) -> None:
        """See `KVManager.release`."""
        self.inner.release(lease)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self.inner.fence(step)
        self._newest = max(self._newest, step)
        self.below.trust.fence(step)
        self.below.pace.fence(step, self.spec.now())

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`: pages of the device, not those in tiers."""
        return self.inner.evict(pool, pages)

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        return self.inner.usage()

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        return [*self.inner.check_integrity(), *broken_invariants(self)]

    def events(self) -> list[CacheEvent]:
        """See `KVManager.events`."""
        return [*self.inner.events(), *self.below.events()]

    def withdraw(self, uid: int) -> None:
        """See `KVManager.withdraw`."""
        self.inner.withdraw(uid)
        self._tries.pop(uid, None)
        self._end_load(uid)

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:
        """See `KVManager.prefetch`. Into trays while most are free, else to the nearest tier."""
        if not self._uses_tiers(prefix) or self._tries[uid] or uid in self.requests:
            return
        hit = self.inner.match(prefix, limit)
        keys, sources = self._sources(prefix, limit, hit)
        if not sources:
            return
        if self.below.has_room_for(len(keys)):
            self._awaited(uid, prefix, Hit(hit.ready, limit - hit.ready), at_once=True)
        else:
            self.below.hops.want(keys, sources)
            self.below.poll()

    def is_coming(self, ticket: int) -> bool:
        """See `KVManager.is_coming`."""
        if self.below.tiers.poll():
            self.below.poll()
        return self.below.loads.is_coming(-ticket)

    def take_moves(self) -> Moves:
        """See `KVManager.take_moves`."""
        return self.below.take_moves()

    def moved(self, ended: Sequence[Moved]) -> None:
        """See `KVManager.moved`."""
        if self.below.moved(ended):
            # What the failed load was to fill is cached: by whom is not known here any more.
            for pool, usage in enumerate(self.inner.usage()):
                self.inner.evict(pool, usage.evictable)

    def counters(self) -> dict[str, float]:
        """See `KVManager.counters`."""
        return self.inner.counters() | self.below.counters()

    def close(self) -> None:
        """See `KVManager.close`. Writes down what is not yet where it lasts, if there is time."""
        self.inner.close()
        self.below.close()
