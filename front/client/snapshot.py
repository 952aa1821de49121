"""The state of an engine at one moment, for metrics and health checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .loop import SteppedEngine


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of one pool; see `camshaft.contracts.cache.PoolUsage`."""

    total: int
    free: int
    evictable: int
    in_use: int
    pinned: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine counts.

    Attributes:
        running: Requests that hold a slot.
        waiting: Requests that wait for one.
        pools: Pages, a pool each.
        counters: The whole numbers of `Stats`, by name.
        by_label: Its counters by a label, such as `finished` by reason.
        unused_tokens: Tokens that running requests have pages for and have not computed.
        prediction_error: Of the predictor of step times; None without one.
        cache: What its cache counts, by name.
    """

    running: int
    waiting: int
    pools: list[PoolState]
    counters: dict[str, int]
    by_label: dict[str, dict[str, int]]
    unused_tokens: int
    prediction_error: float | None = None
    cache: dict[str, float] = {}


def take_snapshot(engine: SteppedEngine) -> Snapshot:
    """Read an engine; call it on the thread that owns it."""
    counters: dict[str, int] = {}
    by_label: dict[str, dict[str, int]] = {}
    for one in fields(engine.stats):
        value = getattr(engine.stats, one.name)
        if isinstance(value, int):
            counters[one.name] = value
        elif isinstance(value, Counter):
            by_label[one.name] = {str(label): int(count) for label, count in value.items()}
    return Snapshot(
        running=len(engine.view.running),
        waiting=len(engine.view.waiting),
        pools=[PoolState(**usage._asdict()) for usage in engine.usage()],
        counters=counters,
        by_label=by_label,
        unused_tokens=engine.unused_tokens,
        prediction_error=engine.stats.prediction_error,
        cache=engine.cache_counters(),
    )
