"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable


class StopStrings:
    """Finds the first stop string of one answer and lets through only what is sure to stay.

    The first is the one whose last character comes first; of several that end there, the longest.
    Where the answer is cut does not depend on how the text was split.
    """

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        """Start an answer.

        Args:
            stops: Stop strings, none empty. Without any, all text passes.
            include: Whether the stop string is part of the answer.

        Raises:
            RequestError: One is empty.
        """
        self._stops = tuple(stops)
        self._include = include
        # The end of the text so far:  [seen and sent] [kept back, not sent]
        self._tail = ""
        self._unsent = 0
        self._reach = max(map(len, self._stops), default=1) - 1
        self.hit: str | None = None
        if not all(self._stops):
            raise RequestError("stop strings must not be empty.", param="stop")

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text.

        Returns:
            The text to send, and the stop string once it was met. After that nothing is sent.
        """
        if self.hit is not None:
            return "", self.hit
        tail = self._tail + text
        sent = len(self._tail) - self._unsent
        match = self._first_match(tail)
        if match is not None:
            start, self.hit = match
            stop = start + len(self.hit) if self._include else start
            self._tail, self._unsent = "", 0
            return tail[sent:stop], self.hit
        sure = len(tail) if self._include else self._first_possible_start(tail)
        kept_from = min(sure, max(0, len(tail) - self._reach))
        self._tail, self._unsent = tail[kept_from:], len(tail) - sure
        return tail[sent:sure], None

    def flush(self) -> str:
        """End the answer: return what was kept back, for no stop string came of it."""
        rest = self._tail[len(self._tail) - self._unsent :]
        self._tail, self._unsent = "", 0
        return rest

    def _first_match(self, text: str) -> tuple[int, str] | None:
        starts = ((text.find(stop), stop) for stop in self._stops)
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _first_possible_start(self, text: str) -> int:
        """Return where the longest end of `text` begins that may still grow into a stop string."""
        earliest = len(text)
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= start < earliest:
                if stop.startswith(text[start:]):
                    earliest = start
                start = text.find(stop[0], start + 1)
        return earliest
