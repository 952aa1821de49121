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

from typing import TYPE_CHECKING

from camshaft.contracts.cache import Delta, Hit, KVManager, Wait

from ..departed import Departed
from ..versions import Versions
from .below import Below
from .checks import broken_invariants
from .finder import LOAD, SWAPPED, Arrived, Finder
from .load import Phase
from .tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import (
        CacheEvent,
        CacheSpec,
        NoSpace,
        PoolUsage,
        Prefix,
        SwapCost,
    )
    from camshaft.contracts.moves import Moved, Moves

    from ..components import TieredSettings


_OWN = "tokens that it never wrote"


class Tiered(KVManager):
    """See the module.

    Attributes:
        inner: Has the pages of the device.
        requests: What is known of open requests, by uid.
        below: The tiers.
    """

    # Of requests that were opened since the last moves were taken, whose pages may not be filled
    # yet: from which unit on they are offered to the tiers then, or -1.
    _unfilled: dict[int, int]

    has_tiers = True
    no_swap = ""

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
        self._departed: Departed[Tables] = Departed()
        self._finder = Finder(self.inner, self.below, settings, spec, self._versions)
        self._newest = 0
        self._unfilled = {}

    @property
    def epoch(self) -> int:  # type: ignore[override]  # the contract has an attribute
        """See `KVManager.epoch`: of the inner one, and of what has been fetched."""
        return self.inner.epoch + self.below.loads.changes

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. What was fetched for this very request counts as ready."""
        return self._finder.match(prefix, limit)

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
            ticket = self._finder.awaited(uid, prefix, hit)
            if ticket:
                return Wait(-ticket)
        arrived = hit.handle if hit is not None and isinstance(hit.handle, Arrived) else None
        if arrived is not None:
            return self._land(uid, prefix, tokens, arrived)
        result = self.inner.allocate(uid, prefix, tokens, hit)
        if isinstance(result, Delta):
            ready = hit.ready if hit is not None else 0
            self._opened(uid, prefix, result, ready)
            self._end_load(uid)
            self._end_swap(uid, prefix, ready)
        return result

    def _fits(self, units: int) -> bool:
        pages = units * self.below.units.pages
        return all(one.free + one.evictable >= pages for one in self.inner.usage())

    def _land(
        self, uid: int, prefix: Prefix, tokens: int, arrived: Arrived
    ) -> Delta | Wait | NoSpace:
        """Open a request and have what was fetched for it copied into its pages."""
        load, hit, ready = arrived
        if load.phase is not Phase.FETCHED or load.uid != uid:
            raise ValueError("the hit is not of the present epoch, or of another request")
        if ready > tokens:
            raise ValueError(f"the hit brings {ready} tokens to an allocation for {tokens}")
        result = self.inner.allocate(uid, prefix, tokens, hit)
        if not isinstance(result, Delta):
            return result
        tables = self._opened(uid, prefix, result, hit.ready)
        first = hit.ready // self._unit
        self.below.land(load, tables, first, ready)
        prefix.memo.pop(LOAD, None)
        tables.considered = -(-ready // self._unit)
        if load.swapped is not None:  # what it alone has is offered once the pages are filled
            self._unfilled[uid] = max(first, min(load.swapped.shared(), tables.considered))
            ready = max(hit.ready, min(ready, load.swapped.declared))
        more = self._commit(tables, ready, self._newest)
        self._end_swap(uid, prefix, arrived.tokens)
        return Delta((*result.writes, *more.writes), result.copies)

    def _opened(self, uid: int, prefix: Prefix, delta: Delta, ready: int) -> Tables:
        groups: list[list[int]] = [[] for _ in self.spec.groups]
        own_from = prefix.memo[_OWN] = min(ready, prefix.memo.get(_OWN, ready))
        tables = Tables(uid, prefix, groups, committed=ready, own_from=own_from)
        tables.apply(delta)
        self.requests[uid] = tables
        self._unfilled[uid] = -1
        self._finder.forget(uid)
        self.below.hits["device"] += ready
        if self._versions.see(prefix):
            for one in self.requests.values():
                one.trusted &= not self._versions.is_outdated(one.prefix)
        tables.trusted = self._finder.uses_tiers(prefix)
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

    def _end_swap(self, uid: int, prefix: Prefix, ready: int) -> None:
        if prefix.memo.pop(SWAPPED, None) is not None:
            self.below.end_swap(uid, ready)

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
            self._unfilled[child] = -1
            self.below.trust.inherit(source, tables)
        return result

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`. What it computed and no tier has leaves before the next launch."""
        self.inner.free(uid, step, hold=hold, forget=forget)
        self._newest = max(self._newest, step)
        tables = self.requests.pop(uid)
        self._unfilled.pop(uid, None)
        if forget:
            tables.trusted = False
            self._forget(tables)
        else:
            self._departed.note(uid, step, tables)
        self.below.exports.last_call(tables)

    def distrust(self, uid: int) -> None:
        """See `KVManager.distrust`."""
        self.inner.distrust(uid)
        tables = self._departed.take(uid)
        if tables is not None:
            self._forget(tables)

    def _forget(self, tables: Tables) -> None:
        """Let nobody find what a request wrote or loaded, nor what may hold pages of it."""
        wrong = self.below.trust.forget(tables, self.requests.values())
        self.below.forget(wrong | self.below.swaps.touched(tables))

    def release(self, lease: str) -> None:
        """See `KVManager.release`."""
        self.inner.release(lease)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self.inner.fence(step)
        self._newest = max(self._newest, step)
        self.below.trust.fence(step)
        self._departed.fence(step)
        self.below.pace.fence(step, self.spec.now())

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`: pages of the device, not those in tiers."""
        return self.inner.evict(pool, pages)

    def clear(self, *, tiers: bool = True) -> int:
        """See `KVManager.clear`. Tiers get there in the background; until then they are read."""
        if tiers:
            self.below.clear()
        return self.inner.clear()

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
        self._finder.forget(uid)
        self._end_load(uid)
        self.below.end_swap(uid, None)

    def swap(self, uid: int, tokens: int, step: int) -> bool:
        """See `KVManager.swap`. Units that tiers have need not leave once more."""
        tables = self.requests[uid]
        swapped = self.below.swaps.begin(tables, tokens) if self._may_swap(tables) else None
        if swapped is None:
            self.below.swaps.refused += 1
            return False
        tables.prefix.memo[SWAPPED] = swapped
        return True

    def _may_swap(self, tables: Tables) -> bool:
        """Whether a request's pages are right, filled, and may be kept elsewhere."""
        filled = tables.uid not in self._unfilled
        return filled and tables.trusted and self._finder.uses_tiers(tables.prefix)

    def swap_cost(self, uid: int, tokens: int) -> SwapCost | None:
        """See `KVManager.swap_cost`."""
        tables = self.requests[uid]
        return self.below.swaps.cost(tables, tokens) if self._may_swap(tables) else None

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:
        """See `KVManager.prefetch`."""
        if uid not in self.requests:
            self._finder.prefetch(uid, prefix, limit)

    def is_coming(self, ticket: int) -> bool:
        """See `KVManager.is_coming`."""
        if self.below.tiers.poll():
            self.below.poll()
        return self.below.swaps.is_coming(-ticket) or self.below.loads.is_coming(-ticket)

    def take_moves(self) -> Moves:
        """See `KVManager.take_moves`."""
        moves = self.below.take_moves()
        for uid, considered in self._unfilled.items():
            if considered >= 0:
                self.requests[uid].considered = considered
        self._unfilled.clear()
        return moves

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
