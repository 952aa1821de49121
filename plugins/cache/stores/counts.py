"""What happens in a store: counted always, told at most once a minute, answered with a pause."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("camshaft.cache")
_QUIET_S = 60.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class StoreCounts:
    """Counters that many threads add to, and warnings that do not flood a log."""

    def __init__(self, place: str, names: tuple[str, ...]) -> None:
        """Start at zero.

        Args:
            place: What warnings are about.
            names: The counters, so that all are there from the start.
        """
        self.now: Callable[[], float] = time.monotonic
        self._place = place
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(names, 0))
        self._told: dict[str, float] = {}

    def add(self, **amounts: float) -> None:
        """Add to counters."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount  # type: ignore[assignment] # seconds are no integers

    def fault(self, name: str, why: str) -> None:
        """Count something wrong, and warn of it unless that was done a moment ago."""
        with self._lock:
            self._counts[name] += 1
            now, count = self.now(), self._counts[name]
            if now - self._told.get(name, -_QUIET_S) < _QUIET_S:
                return
            self._told[name] = now
        _log.warning("%s: %s; %d in all so far", self._place, why, count)

    def all(self) -> dict[str, float]:
        """Return a copy."""
        with self._lock:
            return dict(self._counts)


class Pause:
    """After a failure nothing is tried for a while, longer with each failure in a row."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.monotonic
        self._until = 0.0
        self._length_s = 0.0

    def __bool__(self) -> bool:
        return self._length_s > 0 and self.now() < self._until

    def failed(self) -> None:
        """Begin or lengthen the pause; failures of calls that had begun before count once."""
        if self:
            return
        self._length_s = min(_LONGEST_PAUSE_S, 2 * self._length_s or _FIRST_PAUSE_S)
        self._until = self.now() + self._length_s

    def worked(self) -> None:
        """Forget failures."""
        self._length_s = 0.0
