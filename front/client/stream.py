"""The outputs of a few requests, as they arrive on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from camshaft.request import RequestOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.request import FinishReason, Request

    from .client import EngineClient


class Stream:
    """Iterates over the outputs of requests, in the order in which they arrive.

    Ends when every request has ended. A request that the engine refuses, and an engine that dies,
    raise. Whatever still runs when the stream is closed is aborted, so use it as a context manager.
    All methods are for the event loop that it was opened on.
    """

    def __init__(self, client: EngineClient, requests: Sequence[Request]) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._open = {request.id for request in requests}
        self._arrived: deque[RequestOutput | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        while self._open:
            while self._arrived:
                item = self._arrived.popleft()
                if isinstance(item, Exception):
                    raise item
                if item.id not in self._open:
                    continue  # it was aborted here while this was on its way
                if item.finish is not None:
                    self._open.discard(item.id)
                return item
            self._waiter = self.loop.create_future()
            await self._waiter
        raise StopAsyncIteration

    def abort(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """End one request; nothing more of it arrives. Does nothing if it has ended.

        Args:
            request_id: Which.
            finish: What it counts as.
            returned: Output tokens that its client was given.
        """
        if request_id in self._open:
            self._open.discard(request_id)
            self._client.drop(request_id, finish, returned)

    def close(self) -> None:
        """Abort what still runs."""
        for request_id in list(self._open):
            self.abort(request_id)

    def feed(self, items: Sequence[RequestOutput | Exception]) -> None:
        """Add what arrived; called on the stream's event loop."""
        self._arrived.extend(items)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
