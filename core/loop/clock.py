"""The engine's clock: time, and an event queue that carries everything that happens later."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Real time, in seconds since an arbitrary start. Callbacks run on the engine's thread.

    Attributes:
        on_post: Called by `post`, on its thread: ends the sleep of whoever drives the engine.
    """

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._bell = threading.Event()
        self.on_post: Callable[[], None] = self._bell.set

    def now(self) -> float:
        """Return seconds; never runs backwards."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` at the first `run_due` at or after `when`; equal times in call order."""
        heapq.heappush(self._events, (when, next(self._order), callback))

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` at the next `run_due`. The only method for other threads."""
        self._posted.append(callback)
        self.on_post()

    def rest(self, until: float) -> None:
        """Sleep until then or the next event, or until somebody posts; unless `on_post` is set."""
        due = self.next_event()
        wait_s = (until if due is None else min(until, due)) - self.now()
        if wait_s > 0 and not self._posted:
            self._bell.wait(wait_s)
        self._bell.clear()

    def run_due(self) -> None:
        """Run what was posted, and what is due."""
        for _ in range(len(self._posted)):  # what these post is for the next time
            self._posted.popleft()()
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

    def rest(self, until: float) -> None:
        """Move on to then or the next event, unless somebody posted."""
        due = self.next_event()
        if not self._posted:
            self.advance_to(max(self._now, until if due is None else min(until, due)))

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
