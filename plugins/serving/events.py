"""Answering: whole or as server-sent events, and never for a client that has left."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse

from .errors import ClientGoneError, error_answer, json_response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from camshaft.generate import Choice, Delta, Generation, Usage

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class Writer(Protocol):
    """Puts the answers to one call into the form of an endpoint."""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> msgspec.Struct:
        """Return the body of an answer that is not streamed."""

    def opening(self) -> Iterator[msgspec.Struct]:
        """Yield the events before the first text."""

    def piece(self, delta: Delta) -> msgspec.Struct:
        """Return the event for what a step brought."""

    def closing(self, usage: Usage) -> Iterator[msgspec.Struct]:
        """Yield the events after the last text."""


async def answer(request: Request, run: Generation, writer: Writer, *, stream: bool) -> Response:
    """Run a call and answer it. What fails before the first token has a status of its own.

    Raises:
        CamshaftError: Before anything was sent.
        ClientGoneError: The client left; what ran was aborted.
    """
    if not stream:
        choices = await unless_gone(request, run.choices())
        return json_response(writer.whole(choices, run.usage))
    deltas = run.deltas()
    # Held until here, so that a refusal by the engine is a 4xx and not an event.
    first = await unless_gone(request, anext(deltas))
    return EventStream(deltas, _events(first, deltas, run, writer))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, and cancel it when the client disconnects.

    Raises:
        ClientGoneError: It did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events that end the call when the client leaves, at whatever moment."""

    def __init__(self, deltas: AsyncGenerator[Delta], events: AsyncIterator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._deltas = deltas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the call has ended when this returns."""
        async with aclosing(self._deltas):
            await super().__call__(scope, receive, send)


async def _events(
    first: Delta, deltas: AsyncGenerator[Delta], run: Generation, writer: Writer
) -> AsyncIterator[bytes]:
    opening = b"".join(_event(one) for one in writer.opening())
    yield opening + _event(writer.piece(first))
    try:
        async for delta in deltas:
            yield _event(writer.piece(delta))
    except Exception as error:  # noqa: BLE001 - the status is sent; this is what can still be said
        yield _event(error_answer(error))
        return
    yield b"".join(_event(one) for one in writer.closing(run.usage)) + DONE


def _event(record: msgspec.Struct) -> bytes:
    return b"data: " + _encoder.encode(record) + b"\n\n"
