"""The engine's clock: time, and an event queue that carries everything that happens later."""

from __future__ import annotations

import heapq
import itertools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Real time, in seconds since an arbitrary start. Callbacks run on the engine's thread."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Return seconds; never runs backwards."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` at the first `run_due` at or after `when`; equal times in call order."""
        heapq.heappush(self._events, (when, next(self._order), callback))

    def run_due(self) -> None:
        """Run what is due."""
        while self._events and self._events[0][0] <= self.now():
            heapq.heappop(self._events)[2]()

    def next_event(self) -> float | None:
        """Return when the next callback is due, or None."""
        return self._events[0][0] if self._events else None


class VirtualClock(Clock):
    """Time that moves only when told to: the whole engine runs unchanged in it."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start

    def now(self) -> float:
        """Return virtual seconds."""
        return self._now

    def advance_to(self, when: float) -> None:
        """Move on to `when`, running callbacks at their own times on the way.

        Raises:
            ValueError: `when` is in the past.
        """
        if when < self._now:
            raise ValueError(f"time would run backwards, from {self._now} to {when}")
        while self._events and self._events[0][0] <= when:
            due, _, callback = heapq.heappop(self._events)
            self._now = max(self._now, due)
            callback()
        self._now = when
