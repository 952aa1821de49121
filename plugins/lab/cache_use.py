"""What a run of requests had from the cache, and what the cache lost meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.loop.engine import Engine

SAMPLED = 16
"""Turns of the loop between two looks at the pages: a look costs what a tenth of a turn does."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Counts of one run.

    Attributes:
        prompt_tokens: Of admitted requests.
        hit_tokens: Of these, served from the cache.
        evicted_pages: By reason.
        preemptions: By cause.
        unused_tokens: On average, tokens that requests had pages for and had not computed.
        most_in_use: Of each pool, the most pages that were seen in tables at once.
        counted: What the cache itself counts, by name.
    """

    prompt_tokens: int = 0
    hit_tokens: int = 0
    evicted_pages: dict[str, int] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)
    unused_tokens: float = 0.0
    most_in_use: tuple[int, ...] = ()
    counted: dict[str, float] = field(default_factory=dict)

    def summary(self, pages: Sequence[int], page_bytes: Sequence[int]) -> dict[str, object]:
        """Return the figures that `engine bench --json` prints.

        Args:
            pages: Of each pool.
            page_bytes: Of a page of each pool.
        """
        return {
            "hit_tokens": self.hit_tokens,
            "hit_rate": round(self.hit_tokens / max(1, self.prompt_tokens), 4),
            "evicted_pages": self.evicted_pages,
            "preemptions": self.preemptions,
            "unused_tokens": round(self.unused_tokens, 1),
            **self.counted,
            "pools": [
                {"pages": count, "bytes": count * size, "most_bytes_in_use": most * size}
                for count, size, most in zip(pages, page_bytes, self.most_in_use, strict=True)
            ],
        }


class CacheWatch:
    """Watches the cache of an engine from its making on."""

    def __init__(self, engine: Engine) -> None:
        stats = engine.stats
        self._engine = engine
        self._before = (stats.prompt_tokens, stats.cached_tokens)
        self._counted = engine.cache_counters()
        self._evictions = Counter(stats.evictions)
        self._preemptions = Counter(stats.preemptions)
        self._turns = self._looks = self._unused = 0
        self._most = [0] * len(engine.usage())

    def turn(self) -> None:
        """Note that a turn of the loop is over; look at the pages if it is time."""
        if self._turns % SAMPLED == 0:
            self._looks += 1
            self._unused += self._engine.unused_tokens
            now = [one.in_use for one in self._engine.usage()]
            self._most = [max(both) for both in zip(self._most, now, strict=True)]
        self._turns += 1

    def use(self) -> CacheUse:
        """Return what happened so far."""
        stats, (prompt, cached) = self._engine.stats, self._before
        return CacheUse(
            prompt_tokens=stats.prompt_tokens - prompt,
            hit_tokens=stats.cached_tokens - cached,
            evicted_pages=dict(stats.evictions - self._evictions),
            preemptions=dict(stats.preemptions - self._preemptions),
            unused_tokens=self._unused / max(1, self._looks),
            most_in_use=tuple(self._most),
            counted={
                # what is held is what there is now, not what came since
                name: count if name.endswith("_held") else count - self._counted.get(name, 0)
                for name, count in self._engine.cache_counters().items()
            },
        )
