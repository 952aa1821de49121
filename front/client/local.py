"""An engine in this process, on a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .client import EngineClient
from .loop import EngineLoop, QueueInbox, dead
from .messages import Dead, Ready, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.info import EngineInfo

    from .loop import SteppedEngine
    from .messages import Command


class LocalClient(EngineClient):
    """Builds an engine on a new thread and steps it there."""

    def __init__(self, build: Callable[[], tuple[SteppedEngine, EngineInfo]]) -> None:
        """Start; `wait_ready` or `ready` tell when it has.

        Args:
            build: Makes the engine; called on the engine's thread.
        """
        super().__init__()
        self._build = build
        self._inbox = QueueInbox()
        self._thread = threading.Thread(target=self._run, name="camshaft-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """See `EngineClient.close`."""
        self._inbox.put(Stop())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, command: Command) -> None:
        self._inbox.put(command)

    def _run(self) -> None:
        try:
            engine, info = self._build()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the start
            self._deliver(dead(error, "the engine could not be built"))
            return
        self._deliver(Ready(info))
        if EngineLoop(engine, self._inbox, self._deliver).run():
            self._deliver(Dead("the engine was stopped"))
