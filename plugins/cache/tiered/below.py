"""Everything below the device that a manager with tiers consists of, made and kept together."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from camshaft.component import Chosen
from camshaft.contracts.cache import CacheEvent
from camshaft.contracts.kv_store import StoreSpec
from camshaft.contracts.moves import NO_MOVES, Moves
from camshaft.errors import CamshaftError

from ..components import MemorySettings, camshaft_components
from ..stores.queue import StoreQueue
from .exports import Exports
from .hops import Hops
from .keeper import Keeper
from .landings import Landings
from .loads import Loads
from .pace import Pace
from .swaps import Swaps
from .tier import Tier, Tiers
from .trays import TrayPool
from .trust import Trust
from .units import Units

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from camshaft.contracts.cache import CacheSpec
    from camshaft.contracts.moves import Moved

    from ..components import TieredSettings
    from .load import Load
    from .tables import Tables

_TRAY_UNITS = 32
_LEAST_TRAYS = 4
_SWITCH_S = 2e-4


class Below:
    """The tiers, and what is on its way.

    Attributes:
        units: What tiers keep.
        tiers: Nearest first.
        trays: For everything that travels.
        exports: On their way down.
        loads: On their way up.
        swaps: Requests that were preempted by swap.
        landings: The last part of it.
        hops: Between tiers.
        trust: What turned out to be wrong.
        pace: What is worth loading.
        hits: Tokens by where their pages were found.
    """

    def __init__(
        self, settings: TieredSettings, spec: CacheSpec, fits: Callable[[int], bool]
    ) -> None:
        """Open the stores and make the trays.

        Args:
            settings: Of the manager.
            spec: What it manages.
            fits: Whether so many units more would find room on the device.

        Raises:
            CamshaftError: A store cannot be opened, or the executor moves no pages.
        """
        if spec.tray is None:
            raise CamshaftError(
                "cache 'tiered' moves pages between the device and the host, which this executor "
                "does not do; choose another cache, such as 'paged'"
            )
        if settings.threads:
            # They copy for microseconds between two looks at an index: 5 ms for each turn at the
            # interpreter, beside a loop that is busy, would be most of the time of a load.
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self.settings = settings
        self.spec = spec
        self.units = Units(spec, settings.unit_tokens)
        self.tiers = Tiers(self._opened(settings.tiers or (_memory(settings.host_memory),)))
        total, size = self._shape()
        self.trays = TrayPool(self.units, spec.tray, total, size)
        self.trust = Trust(self.units)
        keeper = Keeper(self.tiers, self.trays, self._kept)
        self.keeper = keeper
        self.exports = Exports(self.units, self.tiers, self.trays, keeper, self.trust)
        self.loads = Loads(
            self.tiers, self.trays, patience_s=settings.patience_s, now=spec.now, fits=fits
        )
        self.swaps = Swaps(
            self.units,
            self.tiers,
            self.trays,
            self.exports,
            keeper,
            patience_s=settings.patience_s,
            now=spec.now,
            ticket=self.loads.next_ticket,
        )
        self.hops = Hops(self.tiers, self.units.bytes, settings.settle_s, self._kept)
        self.pace = Pace(self.tiers, self.units.bytes)
        self.hits: Counter[str] = Counter({"device": 0, **{one.name: 0 for one in self.tiers}})
        self._ticket = itertools.count(1).__next__
        self.landings = Landings(self.units, self.trays, keeper, self._ticket, self._used)
        self._events: list[CacheEvent] = []
        self._told = False
        self._timer: threading.Timer | None = None

    def _opened(self, chosen: Sequence[Chosen]) -> list[Tier]:
        tiers: list[Tier] = []
        store_spec = StoreSpec(self.units.bytes, self.units.identity)
        for one in chosen:
            same = sum(tier.name.rstrip("_0123456789") == one.name for tier in tiers)
            store = one.build(store_spec)
            queue = StoreQueue(
                store,
                threads=self.settings.threads,
                most_reads=self.settings.most_pending,
                most_writes=self.settings.most_pending,
                page_bytes=self.units.bytes,
                wake=self._wake,
            )
            tiers.append(Tier(f"{one.name}_{same + 1}" if same else one.name, store, queue))
        return tiers

    def _shape(self) -> tuple[int, int]:
        """Return how many trays there are, and for how many units each."""
        most = max(1, min(group.pages for group in self.spec.groups) // self.units.pages)
        count = max(1, min(self.settings.staging // self.units.bytes, 2 * most))
        size = max(1, min(_TRAY_UNITS, count // (2 * _LEAST_TRAYS)))
        return max(_LEAST_TRAYS, count // size), size

    def _wake(self) -> None:
        """Have the loop look at what has ended; called from any thread."""
        if not self._told:
            self._told = True
            self.spec.post(self.poll)

    def poll(self) -> None:
        """See what has ended, and go on with what waited for it."""
        self._told = False
        while self.tiers.poll():
            pass
        self.trays.sweep()
        self.keeper.go_on()
        self.loads.go_on()
        now = self.spec.now()
        self.hops.go_on(now)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        """See to it that units go down in time although nothing happens."""
        due_s = self.hops.due_s()
        if due_s < inf and self._timer is None and self.settings.threads:
            self._timer = threading.Timer(max(0.01, due_s - now), self._rung)
            self._timer.daemon = True
            self._timer.start()

    def _rung(self) -> None:
        self._timer = None
        self._wake()

    def _kept(self, level: int, key: bytes) -> None:
        self.hops.note(level, key, self.spec.now())
        self._note("demoted", level, 1)

    def _note(self, kind: str, level: int, units: int) -> None:
        pages = units * self.units.pages
        name = self.tiers[level].name
        for pool in range(len(self.spec.groups)):
            self._events.append(CacheEvent(kind, pool, pages, name))  # type: ignore[arg-type]

    def events(self) -> list[CacheEvent]:
        """Return and forget what happened, joined by kind and tier."""
        joined: Counter[tuple[str, int, str]] = Counter()
        for one in self._events:
            joined[one.kind, one.pool, one.reason] += one.pages
        self._events.clear()
        return [
            CacheEvent(kind, pool, pages, name)  # type: ignore[arg-type]
            for (kind, pool, name), pages in joined.items()
        ]

    def land(self, load: Load, tables: Tables, first: int, tokens: int) -> None:
        """Fill a request's pages from unit `first` on with what was fetched, and end the load."""
        self._measure(load)
        self.landings.land(load, self.loads.end(load), tables, first, tokens)

    def end_swap(self, uid: int, found: int | None) -> None:
        """Forget what was kept for a request, if it was swapped out."""
        self.forget(set(self.swaps.end(uid, found)))

    def _used(self, level: int, key: bytes) -> None:
        self.hits[self.tiers[level].name] += self.units.tokens
        self.hops.used(level, key)
        self._note("loaded", level, 1)

    def has_room_for(self, units: int) -> bool:
        """Return whether a load of so many units leaves most trays free."""
        return 2 * -(-units // self.trays.units) <= self.trays.left_for_loads()

    def _measure(self, load: Load) -> None:
        slowest = self.tiers[max(load.sources, default=0)]
        slowest.measured(load.length * self.units.bytes, load.took_s, self.spec.now())

    def take_moves(self) -> Moves:
        """Return what is to be moved now."""
        self.poll()
        exports, loads = self.exports.take(self._ticket), self.landings.take()
        return Moves(tuple(exports), tuple(loads)) if exports or loads else NO_MOVES

    def moved(self, ended: Sequence[Moved]) -> list[int]:
        """Note that moves have ended; return the tickets of loads that failed."""
        loads = [one for one in ended if not self.exports.moved(one.ticket, one.ok)]
        for one in loads:
            self.landings.moved(one.ticket)
        self.poll()
        return [one.ticket for one in loads if not one.ok]

    def forget(self, wrong: set[bytes]) -> None:
        """Let units that turned out to be wrong be found nowhere."""
        if not wrong:
            return
        self.exports.drop(wrong)
        self.keeper.drop(wrong)
        self.landings.drop(wrong)
        for key in wrong:
            self.hops.drop(key)
        for load in [one for one in self.loads.all() if not wrong.isdisjoint(one.keys)]:
            self.loads.drop(load)
        self.tiers.discard(wrong)

    def clear(self) -> None:
        """Forget all that tiers hold or are about to get, but for what was swapped out."""
        parts = (self.exports, self.keeper, self.hops, self.landings, *self.tiers)
        names = {name for one in parts for name in one.names()}
        names.update(key for load in self.loads.all() for key in load.keys)
        self.forget(names - self.swaps.names())
        self.poll()  # without threads this is where it is done

    def counters(self) -> dict[str, float]:
        """Return what happened so far by name."""
        self.hops.count_waste()
        counts: dict[str, float] = {f"hit_tokens_{name}": n for name, n in self.hits.items()}
        counts |= {
            "exported_pages": self.exports.exported * self.units.pages,
            "exports_dropped_pages": self.exports.dropped * self.units.pages,
            "loaded_pages": self.landings.landed * self.units.pages,
            "loads_late": self.loads.late,
            "loads_short": self.loads.short,
            "refused_pages": self.keeper.refused * self.units.pages,
            "swaps_out": self.swaps.out,
            "swaps_refused": self.swaps.refused,
            "swaps_back_whole": self.swaps.back,
            "swaps_lost_tokens": self.swaps.lost_tokens,
            "prefetched_pages": self.hops.prefetched * self.units.pages,
            "prefetch_hit_pages": self.hops.prefetch_hits * self.units.pages,
            "prefetch_wasted_pages": self.hops.prefetch_wasted * self.units.pages,
        }
        for tier in self.tiers:
            own = tier.store.counters() | tier.queue.counts.all()
            counts |= {f"{tier.name}_{name}": count for name, count in own.items()}
            counts[f"{tier.name}_bytes_held"] = tier.store.used_bytes()
        return counts

    def close(self) -> None:
        """Write down what is not yet where it lasts, while there is time, and close the stores."""
        until_s = time.monotonic() + self.settings.close_s
        if self._timer is not None:
            self._timer.cancel()
        self.poll()
        while self._is_busy() and time.monotonic() < until_s:
            self.poll()
            time.sleep(0.001)
        self.hops.flush(until_s)
        for tier in self.tiers:
            tier.queue.close(max(0.1, until_s - time.monotonic()))

    def _is_busy(self) -> bool:
        return bool(len(self.keeper)) or any(tier.queue.pending() for tier in self.tiers)


def _memory(capacity: int) -> Chosen:
    """Return the one tier that a recipe gets that names none."""
    found = (one for one in camshaft_components() if (one.kind, one.name) == ("kv_store", "memory"))
    return Chosen(next(found), MemorySettings(capacity=capacity))
