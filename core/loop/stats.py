"""Counters of the engine. They only rise; gauges are asked of their owners."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..contracts.cache import CacheEvent


@dataclass(slots=True)
class Stats:
    """What happened since the start.

    Attributes:
        steps: Launched.
        step_tokens: Tokens of all launched steps.
        nano_steps: Launched in nano-batches.
        prompt_tokens: Of admitted requests, counted once each.
        cached_tokens: Of these, served from the cache.
        output_tokens: Settled.
        requests: Submitted.
        finished: By reason.
        preemptions: By cause.
        swaps: Of these, those by swap, by cause. The others are computed again.
        evictions: Pages that the cache lost, by reason.
        waits: Items dropped because pages were still fenced or loading.
        dropped: Plans of which nothing could be placed.
        host_waits: Sample launches delayed because a request needs host tokens.
        wasted_tokens: Sampled for requests that had ended by then.
        most_in_flight: Largest number of launched, unsettled steps.
        failed_launches: Steps whose launch raised.
        prediction_error: Mean of |predicted time / measured time - 1| over the latest steps,
            a hundred or so; None before the first.
    """

    steps: int = 0
    step_tokens: int = 0
    nano_steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)
    swaps: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    dropped: int = 0
    host_waits: int = 0
    wasted_tokens: int = 0
    most_in_flight: int = 0
    failed_launches: int = 0
    prediction_error: float | None = None

    def preempted(self, cause: str, *, by_swap: bool) -> None:
        """Count a preemption."""
        self.preemptions[cause] += 1
        if by_swap:
            self.swaps[cause] += 1

    def predicted(self, ratio: float) -> None:
        """Note how much longer than a step was its predicted time."""
        error, before = abs(ratio - 1), self.prediction_error
        self.prediction_error = error if before is None else before + (error - before) / 64

    def note_cache(self, events: Iterable[CacheEvent]) -> None:
        """Count what the cache evicted."""
        for kind, _, pages, reason in events:
            if kind == "evicted":
                self.evictions[reason] += pages
