"""HTTP that no application ever sees: what is no HTTP, and clients that neither send nor read."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from camshaft.errors import RequestError

from .errors import error_answer

if TYPE_CHECKING:
    import asyncio

_HEAD_BYTES = 64 * 1024
"""Request line and headers; clients and proxies send a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class Patience:
    """With connections.

    Attributes:
        connections: Most that are open at once.
        head_s: Seconds that a connection may take to send the head of a request.
        reader_s: Seconds for which an answer may wait for a client that does not read.
    """

    connections: int
    head_s: float
    reader_s: float


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with a limit to what a client can hold, and refusals in JSON."""

    def __init__(self, *, patience: Patience, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**options)
        self._patience = patience
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for one more."""
        super().connection_made(transport)
        if len(self.connections) > self._patience.connections:
            self._refuse(503, "there are too many connections", retry_after_s=1)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its timers."""
        self._head_is_there()
        self._stop_reader_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; not of a head without end."""
        if self.transport.is_closing():
            return  # it was refused, and what it still sends is nobody's
        super().data_received(data)
        if self._head_timer is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self._refuse(431, f"the headers are larger than {_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Note that its head is there: from here on the application watches it."""
        self._head_is_there()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not for ever."""
        super().pause_writing()
        self._reader_timer = self.loop.call_later(self._patience.reader_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it has read."""
        self._stop_reader_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, and close the connection."""
        self._refuse(400, msg)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._patience.head_s, self._give_up)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer, self._head_bytes = None, 0

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        self._reader_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(408, "the head of the request did not come to its end")
        else:
            self.transport.close()  # it has sent nothing, and may not expect an answer

    def _refuse(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        body = msgspec.json.encode(error_answer(RequestError(message, status=status)))
        again = "" if retry_after_s is None else f"retry-after: {retry_after_s}\r\n"
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"{again}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
