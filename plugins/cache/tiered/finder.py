"""What of a waiting request's text tiers have, and having it fetched: for `match` and `allocate`.

A text that goes on in a tier is worth a load if that is faster than computing it. A request that
was swapped out finds what it left, under other names and to the token.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import Hit

from .load import Phase

if TYPE_CHECKING:
    from camshaft.contracts.cache import CacheSpec, KVManager, Prefix

    from ..components import TieredSettings
    from ..versions import Versions
    from .below import Below
    from .load import Load
    from .swapped import Swapped

LOAD = "load from tiers"
SWAPPED = "what a preemption left in tiers"
"""Where a `Prefix` keeps these."""

_MOST_TRIES = 3
"""Loads for one admission: what a load goes on from may be evicted meanwhile."""


class Arrived(NamedTuple):
    """The handle of a hit that goes on in a load.

    Attributes:
        load: What was fetched.
        hit: Of the inner manager, the part on the device.
        tokens: Where it ends; within a unit if its request was swapped out.
    """

    load: Load
    hit: Hit
    tokens: int


class Finder:
    """See the module."""

    def __init__(
        self,
        inner: KVManager,
        below: Below,
        settings: TieredSettings,
        spec: CacheSpec,
        versions: Versions,
    ) -> None:
        """Have found nothing yet.

        Args:
            inner: Has the pages of the device.
            below: The tiers.
            settings: Of the manager.
            spec: What it manages.
            versions: That were seen.
        """
        self._inner = inner
        self._below = below
        self._settings = settings
        self._spec = spec
        self._versions = versions
        self._unit = below.units.tokens
        self._tries: Counter[int] = Counter()

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. What was fetched for this very request counts as ready."""
        hit = self._inner.match(prefix, limit)
        if not self.uses_tiers(prefix):
            return hit
        load: Load | None = prefix.memo.get(LOAD)
        if load is not None and load.phase is not Phase.OVER:
            found = self._with_load(load, prefix, limit, hit)
            if found is not None:
                return found
        swapped: Swapped | None = prefix.memo.get(SWAPPED)
        if swapped is not None and self._below.swaps.is_leaving(swapped):
            return Hit(hit.ready, max(0, min(swapped.tokens, limit) - hit.ready), hit.handle)
        sources = self._sources(prefix, limit, hit)[1]
        if not sources:
            return hit
        end = hit.ready // self._unit + len(sources)
        tokens = end * self._unit if swapped is None else swapped.covered(end, self._unit)
        return Hit(hit.ready, max(0, min(tokens, limit) - hit.ready), hit.handle)

    def uses_tiers(self, prefix: Prefix) -> bool:
        """Return whether pages of a text may be below the device: not where their age counts."""
        if not self._spec.prefix or prefix.scope.ttl_s < inf:
            return False
        return not self._versions.is_outdated(prefix)

    def _start(self, hit: Hit) -> int:
        return hit.ready // self._unit * self._unit

    def _sources(self, prefix: Prefix, limit: int, hit: Hit) -> tuple[list[bytes], list[int]]:
        """Return the units behind a hit that tiers hold and that are worth loading."""
        below, swapped = self._below, prefix.memo.get(SWAPPED)
        limit = min(limit, len(prefix.tokens))
        first, end = hit.ready // self._unit, limit // self._unit
        if swapped is not None:
            end = len(swapped.keys) if hit.ready < min(limit, swapped.tokens) else 0
        if first >= end:
            return [], []
        keys = (below.units.keys(prefix, end) if swapped is None else swapped.keys)[first:end]
        sources = below.tiers.sources(keys)
        tokens = len(sources) * self._unit - hit.ready % self._unit
        # that of one that was swapped out was weighed before
        is_free = self._settings.load == "always" or not sources or swapped is not None
        if is_free or below.pace.is_worth(sources, tokens, self._spec.now()):
            return keys[: len(sources)], sources
        return [], []

    def _with_load(self, load: Load, prefix: Prefix, limit: int, hit: Hit) -> Hit | None:
        """Return the hit of a request that has a load; None if that goes on from nothing."""
        swapped = load.swapped
        if load.is_coming:
            end = load.first + len(load.keys)
            coming = end * self._unit if swapped is None else swapped.covered(end, self._unit)
            return Hit(hit.ready, max(0, min(coming, limit) - hit.ready), hit.handle)
        tokens = min(load.end, limit // self._unit) * self._unit
        if swapped is not None:
            tokens = min(swapped.covered(load.end, self._unit), limit)
        if tokens <= hit.ready:
            return hit
        if hit.ready % self._unit:  # its first unit is filled as a whole, into pages of its own
            hit = self._inner.match(prefix, self._start(hit))
        if hit.ready % self._unit or hit.ready < load.first * self._unit:
            return None
        return Hit(tokens, handle=Arrived(load, hit, tokens))

    def awaited(self, uid: int, prefix: Prefix, hit: Hit, *, at_once: bool = False) -> int:
        """Return the ticket of a load that is under way, begun now if it must be; 0 if none is."""
        loads, swapped = self._below.loads, self._below.swaps.of(uid)
        load = loads.of(uid)
        if load is not None and load.is_coming:
            return load.ticket if loads.is_coming(load.ticket) else 0
        if swapped is not None and self._below.swaps.is_leaving(swapped):
            return swapped.ticket
        if self._tries[uid] >= _MOST_TRIES:
            return 0
        if load is not None:
            loads.drop(load)
        end, start = hit.ready + hit.loading, hit
        if self._tries[uid]:  # the device lost what the last load went on from: not again
            start = Hit(0)
        keys, sources = self._sources(prefix, end, start)
        if start is not hit and len(sources) * self._unit <= hit.ready:
            start = hit
            keys, sources = self._sources(prefix, end, start)
        if not sources:
            return 0
        self._tries[uid] += 1
        first = start.ready // self._unit
        load = loads.begin(uid, prefix, first, keys, sources, at_once=at_once, swapped=swapped)
        prefix.memo[LOAD] = load
        return load.ticket

    def forget(self, uid: int) -> None:
        """Note that a request was opened or withdrawn."""
        self._tries.pop(uid, None)

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:
        """See `KVManager.prefetch`. Into trays while most are free, else to the nearest tier."""
        if not self.uses_tiers(prefix) or self._tries[uid]:
            return
        swapped = self._below.swaps.of(uid)
        if swapped is not None and self._below.swaps.is_leaving(swapped):
            return
        hit = self._inner.match(prefix, limit)
        keys, sources = self._sources(prefix, limit, hit)
        if not sources:
            return
        if self._below.has_room_for(len(keys)):
            self.awaited(uid, prefix, Hit(hit.ready, limit - hit.ready), at_once=True)
        else:
            self._below.hops.want(keys, sources)
            self._below.poll()
