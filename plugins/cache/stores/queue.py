"""Reads and writes of a store in the background, with bounds.

Each thread has a lane, and a digest always goes to the same one. In a lane reads overtake writes,
except those of their own page: so a page that is asked for while it is still being stored is found,
and never half of it. What is beyond the bound is refused at once: a slow store then serves less,
and nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from .counts import StoreCounts
from .lane import Lane, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.contracts.kv_store import KVStore

    from .lane import Room

COUNTERS = ("reads_refused", "writes_refused", "cancelled", "store_errors")


class Done(NamedTuple):
    """An operation that has ended; its buffer is the caller's again.

    Attributes:
        ticket: What `read` or `write` returned.
        kind: Which of them it was.
        ok: The page was found, or kept.
    """

    ticket: int
    kind: Literal["read", "write"]
    ok: bool


class StoreQueue:
    """Runs a store's operations on threads of its own. Its methods are one thread's: the loop's."""

    def __init__(
        self,
        store: KVStore,
        *,
        threads: int,
        most_reads: int,
        most_writes: int,
        page_bytes: int = 0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the threads.

        Args:
            store: Whose `put` and `get` they call.
            threads: Operations that run at once. With 0 all run in `finished`, so that tests and
                simulations go the same way each time.
            most_reads: Reads that may be under way or wait.
            most_writes: Writes, likewise.
            page_bytes: Of a page; needed for rooms.
            wake: Called from a thread when an operation has ended; must be quick.
        """
        self.store = store
        self.counts = StoreCounts("a KV store", COUNTERS)
        self._most = {"read": most_reads, "write": most_writes}
        self._pending = {"read": 0, "write": 0}
        self._page_bytes = page_bytes
        self._wake = wake
        self._ticket = 0
        self._done: deque[Done] = deque()
        self._cancelled: set[int] = set()
        self._open: set[int] = set()
        self._lanes = [Lane() for _ in range(max(1, threads))]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"kv-store-{place}", daemon=True)
            for place, lane in enumerate(self._lanes[:threads])
        ]
        if not threads:
            self._lanes[0].close()
        for thread in self._threads:
            thread.start()

    def read(self, digest: bytes, into: memoryview | Room) -> int | None:
        """Begin to fill `into`; return a ticket, or None when too much is pending."""
        return self._begin("read", digest, into)

    def write(self, digest: bytes, page: memoryview | Room) -> int | None:
        """Begin to keep a page, which must not change until done; None as in `read`."""
        return self._begin("write", digest, page)

    def discard(self, digest: bytes) -> None:
        """Forget a page, also one that is being written. Reads that begin later do not find it."""
        self._lane(digest).add(Task(0, "discard", digest, memoryview(b"")))

    def cancel(self, ticket: int) -> None:
        """Skip an operation that has not begun. It ends like others, and is not `ok`."""
        if ticket in self._open:
            self._cancelled.add(ticket)

    def finished(self) -> list[Done]:
        """Return what has ended since the last call. Never waits for a thread."""
        if not self._threads:
            self._work(self._lanes[0])
        ended = []
        while self._done:
            one = self._done.popleft()
            self._pending[one.kind] -= 1
            self._open.discard(one.ticket)
            self._cancelled.discard(one.ticket)
            ended.append(one)
        return ended

    def pending(self) -> int:
        """Return how many operations have not been returned by `finished`."""
        return len(self._open)

    def close(self, within_s: float = 10.0) -> None:
        """Finish what is pending, end the threads, and close the store.

        Args:
            within_s: After so many seconds a store that hangs is left alone.
        """
        until = time.monotonic() + within_s
        if not self._threads:
            self._work(self._lanes[0])
        for lane in self._lanes:
            lane.close()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self.counts.fault("store_errors", f"it did not finish within {within_s:.3g} s")
        else:
            self.store.close()

    def _begin(
        self, kind: Literal["read", "write"], digest: bytes, page: memoryview | Room
    ) -> int | None:
        if self._pending[kind] >= self._most[kind]:
            self.counts.add(**{f"{kind}s_refused": 1})
            return None
        self._pending[kind] += 1
        self._ticket += 1
        self._open.add(self._ticket)
        self._lane(digest).add(Task(self._ticket, kind, digest, page))
        return self._ticket

    def _lane(self, digest: bytes) -> Lane:
        return self._lanes[int.from_bytes(digest[:4], "little") % len(self._lanes)]

    def _work(self, lane: Lane) -> None:
        desk = memoryview(bytearray(self._page_bytes))
        while (task := lane.next()) is not None:
            is_ok = False
            if task.ticket in self._cancelled:
                self.counts.add(cancelled=1)
            else:
                is_ok = self._run(task, desk)
            lane.done(task)
            if task.kind != "discard":
                self._done.append(Done(task.ticket, task.kind, is_ok))
                self._wake()

    def _run(self, task: Task, desk: memoryview) -> bool:
        """Do a task; a room's page goes over `desk`."""
        page, store = task.page, self.store
        try:
            if task.kind == "discard":
                store.discard(task.digest)
                return False
            if isinstance(page, memoryview):
                move = store.get if task.kind == "read" else store.put
                return move(task.digest, page)
            if task.kind == "write":
                page.read(desk)
                return store.put(task.digest, desk)
            if store.get(task.digest, desk):
                page.write(desk)
                return True
        except Exception as error:  # noqa: BLE001 - a plugin's store must not end the thread
            self.counts.fault("store_errors", f"it raised {type(error).__name__}: {error}")
        return False
