"""The invariants of a manager with tiers, beyond those of the manager inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.cache import NULL_PAGE

from .load import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .manager import Tiered


def broken_invariants(cache: Tiered) -> list[str]:
    """Return what is wrong, in words."""
    return [*_tables(cache), *_trays(cache), *_loads(cache)]


def _tables(cache: Tiered) -> Iterator[str]:
    for pool, usage in enumerate(cache.inner.usage()):
        held = {page for one in cache.requests.values() for page in one.groups[pool]} - {NULL_PAGE}
        if len(held) != usage.in_use:
            yield f"pool {pool}: {len(held)} pages are in copied tables, {usage.in_use} in use"


def _trays(cache: Tiered) -> Iterator[str]:
    below = cache.below
    owned = [tray for load in below.loads.all() for tray in load.trays]
    owned += below.trays.free + below.trays.leaving + below.exports.trays() + below.landings.trays()
    if len(owned) != below.trays.total or len(set(owned)) != len(owned):
        yield f"of {below.trays.total} trays {len(owned)} have an owner, {len(set(owned))} only one"
    if any(tray.busy for tray in below.trays.free):
        yield "a free tray is being read or written"


def _loads(cache: Tiered) -> Iterator[str]:
    for load in cache.below.loads.all():
        if load.uid in cache.requests:
            yield f"request {load.uid} is open and has a load"
        end = load.first + len(load.keys)
        if load.swapped is not None:
            own = load.swapped.keys
        else:
            own = cache.below.units.keys(load.prefix, end)
        if own[load.first : load.first + len(load.keys)] != load.keys:
            yield f"the load of request {load.uid} is of another text"
        room = sum(tray.count for tray in load.trays)
        if load.phase is Phase.FETCHED and room != load.length:
            yield f"the load of request {load.uid} has {load.length} units in room for {room}"
