"""The operations on a store that one thread has before it, in their order."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Literal, NamedTuple, Protocol

Kind = Literal["read", "write", "discard"]


class Room(Protocol):
    """Memory of a page in another order than a store's, such as a place in a tray."""

    def read(self, into: memoryview) -> None:
        """Copy the page out, as one run of bytes."""

    def write(self, page: memoryview) -> None:
        """Copy a page in."""


class Task(NamedTuple):
    """An operation.

    Attributes:
        ticket: Its number.
        kind: What to do.
        digest: Of the page.
        page: To be filled, or to be kept; empty to discard.
    """

    ticket: int
    kind: Kind
    digest: bytes
    page: memoryview | Room


class Lane:
    """A queue in which reads overtake what changes other pages, but not what changes their own."""

    def __init__(self) -> None:
        self._reads: deque[Task] = deque()
        self._changes: deque[Task] = deque()  # and the reads behind them
        self._changing: Counter[bytes] = Counter()
        self._some = threading.Condition()
        self._closed = False

    def add(self, task: Task) -> None:
        """Put an operation in its place."""
        with self._some:
            if task.kind == "read" and task.digest not in self._changing:
                self._reads.append(task)
            else:
                self._changes.append(task)
            if task.kind != "read":
                self._changing[task.digest] += 1
            self._some.notify()

    def next(self) -> Task | None:
        """Wait for an operation and take it; None once closed and empty."""
        with self._some:
            while not self._reads and not self._changes:
                if self._closed:
                    return None
                self._some.wait()
            return (self._reads or self._changes).popleft()

    def done(self, task: Task) -> None:
        """Note that an operation has ended."""
        if task.kind == "read":
            return
        with self._some:
            self._changing[task.digest] -= 1
            if not self._changing[task.digest]:
                del self._changing[task.digest]

    def close(self) -> None:
        """Let the thread end when all is done."""
        with self._some:
            self._closed = True
            self._some.notify()
