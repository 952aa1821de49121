"""When a request that is turned away should come again."""

from __future__ import annotations

MEMORY_S = 30.0
"""Seconds for which the rate of answers is remembered, at least; twice as long at most."""

SHORTEST_S, LONGEST_S = 1.0, 60.0


class Retry:
    """Counts answers, for how long a queue will take."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._answers = 0.0
        self._now: float | None = None

    def pass_time(self, now: float) -> None:
        """Note what time it is."""
        self._seconds += now - (now if self._now is None else self._now)
        self._now = now
        if self._seconds > 2 * MEMORY_S:
            self._seconds /= 2
            self._answers /= 2

    def answered(self) -> None:
        """Note that a request got its answer."""
        self._answers += 1

    def after_s(self, waiting: int) -> float:
        """Return how long so many waiting requests take at the rate of late, 1 to 60 seconds."""
        seconds = waiting * self._seconds / self._answers if self._answers else SHORTEST_S
        return min(max(seconds, SHORTEST_S), LONGEST_S)
