"""Running the application: a socket, an event loop, signals, and an end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn
import uvloop

from camshaft.errors import CamshaftError

from .logs import tell
from .protocol import Patience, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from fastapi import FastAPI

    from camshaft.recipe import ServerSection

    from .service import Service

_BACKLOG = 2048

_LAST_RESORT_S = 3.0
"""After the drain, for connections whose clients do not read their last bytes."""


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; connections wait until the server runs, which is soon.

    Raises:
        CamshaftError: The address is taken or not ours.
    """
    try:
        return _listening(host, port)
    except OSError as error:
        raise CamshaftError(
            f"cannot listen on {host} port {port}: {error.strerror}. Stop what uses it, or choose "
            "another with --port (0 takes a free one)."
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # now, so that a second server is told at its start
    except OSError:
        bound.close()
        raise
    return bound


class HttpServer(uvicorn.Server):
    """uvicorn's server, which leaves signals to whoever runs it."""

    def __init__(self, app: FastAPI, settings: ServerSection) -> None:
        patience = Patience(settings.max_connections, settings.body_wait_s, settings.reader_wait_s)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", partial(Protocol, patience=patience)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=logging.getLogger("uvicorn.access").isEnabledFor(logging.INFO),
                server_header=False,
                timeout_graceful_shutdown=max(1, round(settings.shutdown_s + _LAST_RESORT_S)),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class Serving:
    """One server from its first connection to its last."""

    def __init__(
        self, app: FastAPI, service: Service, settings: ServerSection, bound: socket.socket
    ) -> None:
        self._service = service
        self._settings = settings
        self._socket = bound
        self._server = HttpServer(app, settings)
        self._died = False
        self._stopped = asyncio.Event()

    async def run(self, starting: Coroutine[Any, Any, None]) -> bool:
        """Serve until a signal, or until the engine dies.

        Args:
            starting: What makes the service ready, beside the server; its error ends the server.

        Returns:
            False if the engine died.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        begin = asyncio.ensure_future(starting)
        begin.add_done_callback(self._on_begun)
        watch = asyncio.ensure_future(self._watch_engine(begin))
        drain = asyncio.ensure_future(self._drain())
        try:
            await self._server.serve([self._socket])
        finally:
            for task in (begin, watch, drain):
                task.cancel()
            await asyncio.gather(watch, drain, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await begin
        return not self._died

    def stop(self) -> None:
        """Take no more requests, and end when those that run have ended, or now if called again."""
        if self._service.stopping:
            self._service.client.fail_open("the server was stopped")
        self._service.stopping = True
        self._server.should_exit = True
        self._stopped.set()

    def _on_signal(self) -> None:
        again = self._service.stopping
        text = "stopping now" if again else "stopping; once more to stop at once"
        open_calls = len(self._service.open_calls)
        tell("drain", text, logging.WARNING, at_once=again, open_calls=open_calls)
        self.stop()

    def _on_begun(self, begin: asyncio.Future[None]) -> None:
        if not begin.cancelled() and begin.exception() is not None:
            self.stop()

    async def _drain(self) -> None:
        """When the server stops, end what still runs after its time."""
        await self._stopped.wait()
        await asyncio.sleep(self._settings.shutdown_s)
        self._service.client.fail_open("the server was stopped")

    async def _watch_engine(self, begin: asyncio.Future[None]) -> None:
        await asyncio.wait((begin,))  # an engine that cannot start is its matter
        error = await self._service.client.death()
        if self._service.stopping:
            return
        self._died = True
        linger_s = self._settings.linger_s
        text = f"{error}; the server exits in {linger_s:g} s"
        tell("dead", text, logging.ERROR, reason=str(error), linger_s=linger_s)
        await asyncio.sleep(self._settings.linger_s)
        self.stop()


def run_server(serving: Serving, starting: Coroutine[Any, Any, None]) -> bool:
    """Run a server in this thread, which must be the main one. See `Serving.run`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving.run(starting))
