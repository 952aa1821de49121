"""A client whose engine, when it dies, is started anew."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal

from .client import EngineClient, EngineDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from camshaft.info import EngineInfo
    from camshaft.request import FinishReason, Request

    from .messages import Command
    from .snapshot import Snapshot
    from .stream import Stream

_LONGEST_WAIT_S = 30.0


class RestartingClient(EngineClient):
    """Passes everything on to a client of its own making, and makes another when its engine dies.

    Requests that ran are lost, as with any engine that dies, and so is the cache. An engine that
    never was ready, or whose new start fails for a reason that a user can fix, stays dead.
    """

    def __init__(
        self,
        start: Callable[[], EngineClient],
        *,
        most: int,
        wait_s: float = 1.0,
        forget_s: float = 600.0,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the first engine.

        Args:
            start: Makes a client whose engine starts.
            most: Deaths in a row after which there is another start.
            wait_s: Seconds before the first of them; twice as many before each later one.
            forget_s: An engine that ran for so many seconds begins a new row.
            progress: Is told of deaths, on another thread.
        """
        super().__init__()
        self._start = start
        self._most = most
        self._wait_s = wait_s
        self._forget_s = forget_s
        self._progress = progress
        self._closing = threading.Event()
        self._swapping = threading.Lock()
        self._in_a_row = 0
        self._restarts = 0
        self._inner = start()
        self._thread = threading.Thread(target=self._watch, name="camshaft-restarts", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`; that of a new engine may differ in its memory."""
        return self._inner.info

    @property
    def state(self) -> Literal["starting", "ready", "silent", "restarting", "dead"]:
        """See `EngineClient.state`; `restarting` ends when the next engine is ready."""
        if self._death.done():
            return "dead"
        inner = self._inner.state
        if self._ready.done() and inner in ("starting", "dead"):
            return "restarting"
        return "starting" if inner == "dead" else inner

    @property
    def doing(self) -> str:
        """See `EngineClient.doing`."""
        return self._inner.doing

    @property
    def restarts(self) -> int:
        """See `EngineClient.restarts`."""
        return self._restarts

    @property
    def open_requests(self) -> int:
        """See `EngineClient.open_requests`."""
        return self._inner.open_requests

    def open(self, requests: Sequence[Request]) -> Stream:
        """See `EngineClient.open`."""
        return self._inner.open(requests)

    async def abort(self, request_id: str) -> None:
        """See `EngineClient.abort`."""
        await self._inner.abort(request_id)

    def drop(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """See `EngineClient.drop`."""
        self._inner.drop(request_id, finish, returned)

    def fail_open(self, message: str) -> None:
        """See `EngineClient.fail_open`."""
        self._inner.fail_open(message)

    async def snapshot(self, timeout_s: float = 10.0) -> Snapshot:
        """See `EngineClient.snapshot`."""
        return await self._inner.snapshot(timeout_s)

    async def reset_cache(self, timeout_s: float = 10.0) -> int:
        """See `EngineClient.reset_cache`."""
        return await self._inner.reset_cache(timeout_s)

    async def sleep(self, timeout_s: float = 60.0) -> int:
        """See `EngineClient.sleep`; an engine that takes the place of one asleep is awake."""
        return await self._inner.sleep(timeout_s)

    async def wake(self, timeout_s: float = 60.0) -> None:
        """See `EngineClient.wake`."""
        await self._inner.wake(timeout_s)

    def close(self) -> None:
        """See `EngineClient.close`. There is no new start afterwards."""
        with self._swapping:
            self._closing.set()
            self._inner.close()
        self._thread.join()

    def _send(self, command: Command) -> None:
        self._inner._send(command)

    def _watch(self) -> None:
        while True:
            error = self._life()
            if self._closing.is_set() or not self._may_go_on(error):
                break
            wait_s = min(_LONGEST_WAIT_S, self._wait_s * 2 ** (self._in_a_row - 1))
            self._progress(
                f"{error}; it is started again in {wait_s:g} s ({self._in_a_row} of {self._most})"
            )
            self._inner.close()  # it may still hold the device
            if self._closing.wait(wait_s) or not self._swap():
                break
        self._died(error)

    def _life(self) -> EngineDiedError:
        """Follow one engine from its start to its death."""
        try:
            info = self._inner.wait_ready()
        except EngineDiedError as error:
            return error
        if not self._ready.done():
            self._ready.set_result(info)
        began = time.monotonic()
        death = self._inner.wait_death()
        if time.monotonic() - began >= self._forget_s:
            self._in_a_row = 0
        return death

    def _may_go_on(self, error: EngineDiedError) -> bool:
        self._in_a_row += 1
        return self._ready.done() and not error.fixable and self._in_a_row <= self._most

    def _swap(self) -> bool:
        with self._swapping:
            if self._closing.is_set():
                return False
            self._inner = self._start()
            self._restarts += 1
        return True
