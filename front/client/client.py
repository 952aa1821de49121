"""The client of an engine: one interface, whether the engine runs in this process or in another."""

from __future__ import annotations

import asyncio
import itertools
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from camshaft.errors import CamshaftError, RequestError

from .messages import Abort, Answer, Ask, Dead, Outputs, Ready, Rejected, Submit
from .stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from camshaft.info import EngineInfo
    from camshaft.request import FinishReason, Request, RequestOutput

    from .messages import Command, Question, Reply
    from .snapshot import Snapshot


class EngineDiedError(CamshaftError):
    """The engine is gone; requests that ran in it are lost.

    Attributes:
        details: Its traceback, for the operator.
        fixable: The cause is one that a user can fix, such as a damaged weight file.
    """

    def __init__(self, message: str, details: str = "", *, fixable: bool = False) -> None:
        super().__init__(message)
        self.details = details
        self.fixable = fixable

    def copy(self) -> EngineDiedError:
        """Return an equal error: one that is raised again and again would collect its frames."""
        return EngineDiedError(str(self), self.details, fixable=self.fixable)


class EngineClient(ABC):
    """Runs requests in an engine. Methods may be called from any event loop and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None: nobody listens any more, and the engine has not confirmed the end yet
        self._streams: dict[str, Stream | None] = {}
        self._asked: dict[int, Future[Answer]] = {}
        self._tickets = itertools.count(1)
        self._ready: Future[EngineInfo] = Future()
        self._death: Future[EngineDiedError] = Future()
        self._doing = "starting"

    @property
    def info(self) -> EngineInfo:
        """The engine's description.

        Raises:
            EngineDiedError: It died while it started.
            RequestError: It has not started yet.
        """
        if not self._ready.done():
            raise RequestError(f"the engine is not ready: {self._doing}", status=503)
        return self._ready.result()

    @property
    def state(self) -> Literal["starting", "ready", "silent", "restarting", "dead"]:
        """Where the engine is.

        `silent` is one that gives no sign of life, which may pass; `restarting` one that died and
        is started anew, by clients that do that.
        """
        if self._death.done():
            return "dead"
        if not self._ready.done():
            return "starting"
        return "silent" if self._is_silent() else "ready"

    @property
    def healthy(self) -> bool:
        """Whether requests can be run now."""
        return self.state == "ready"

    @property
    def doing(self) -> str:
        """What the engine says about itself: how far it is, or why it died."""
        return str(self._death.result()) if self._death.done() else self._doing

    @property
    def restarts(self) -> int:
        """Times that another engine was started for one that died."""
        return 0

    @property
    def open_requests(self) -> int:
        """Requests that were opened and have not ended in the engine."""
        return len(self._streams)

    async def ready(self) -> EngineInfo:
        """Wait until the engine takes requests.

        Raises:
            EngineDiedError: It could not start.
        """
        return await asyncio.shield(asyncio.wrap_future(self._ready))

    def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        """Block until the engine takes requests; see `ready`."""
        return self._ready.result(timeout_s)

    async def death(self) -> EngineDiedError:
        """Wait until the engine dies, and return why."""
        return await asyncio.shield(asyncio.wrap_future(self._death))

    def wait_death(self) -> EngineDiedError:
        """Block until the engine dies; see `death`."""
        return self._death.result()

    def open(self, requests: Sequence[Request]) -> Stream:
        """Run requests and stream their outputs.

        Args:
            requests: With ids that no other open request has.

        Returns:
            A stream for the running event loop; use it as an async context manager.

        Raises:
            EngineDiedError: There is no engine any more.
        """
        stream = Stream(self, requests)
        with self._lock:
            self._refuse_if_dead()
            for request in requests:
                if request.id in self._streams:
                    raise RequestError(f"request id '{request.id}' is in use", param="request_id")
            self._streams.update((request.id, stream) for request in requests)
        self._send(Submit(list(requests)))
        return stream

    async def generate(self, request: Request) -> AsyncGenerator[RequestOutput]:
        """Run one request and yield its outputs. It is aborted if the iteration stops early.

        Raises:
            RequestError: The engine refused it.
            EngineDiedError: The engine died.
        """
        async with self.open([request]) as stream:
            async for output in stream:
                yield output

    async def abort(self, request_id: str) -> None:
        """End a request wherever it is; its stream gets a last output with `finish: abort`."""
        self._send(Abort(request_id))

    def drop(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """End a request that nobody listens to any more. Its id is free once the engine did.

        Args:
            request_id: Which.
            finish: What it counts as.
            returned: Output tokens that its client was given.
        """
        with self._lock:
            known = self._streams.get(request_id) is not None
            if known:
                self._streams[request_id] = None
        if known:
            self._send(Abort(request_id, finish, returned))

    def fail_open(self, message: str) -> None:
        """End every open request with an error; the engine goes on."""
        with self._lock:
            streams = dict(self._streams)
            self._streams = dict.fromkeys(streams)
        for request_id in streams:
            self._send(Abort(request_id))
        self._spread(
            (stream, RequestError(message, code="stopping", status=503))
            for stream in dict.fromkeys(streams.values())
        )

    async def snapshot(self, timeout_s: float = 10.0) -> Snapshot:
        """Return the state of the engine now.

        Raises:
            EngineDiedError: There is no engine any more.
            TimeoutError: It did not answer; it may be busy with a long step.
        """
        answer = await self._ask("snapshot", timeout_s)
        assert answer.snapshot is not None
        return answer.snapshot

    async def reset_cache(self, timeout_s: float = 10.0) -> int:
        """Drop all that is cached and that no request uses, in tiers too. Raises as `snapshot`.

        Returns:
            How many pages of the device were dropped.
        """
        return (await self._ask("reset_cache", timeout_s)).pages

    async def sleep(self, timeout_s: float = 60.0) -> int:
        """Let the engine give the memory of its cache back; it refuses requests until `wake`.

        What is cached on the device is forgotten. Weights stay.

        Returns:
            Bytes that it gave back; 0 if it sleeps already.

        Raises:
            RequestError: It has work, with status 409. Else as `snapshot`.
        """
        return (await self._told("sleep", timeout_s)).freed_bytes

    async def wake(self, timeout_s: float = 60.0) -> None:
        """Let the engine take its memory again; does nothing to one that is awake.

        Raises:
            RequestError: The memory is not free any more, with status 503. Else as `snapshot`.
        """
        await self._told("wake", timeout_s)

    @abstractmethod
    def close(self) -> None:
        """Stop the engine and wait until it is gone. Open requests end with an error."""

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Bring a command to the engine; safe from any thread, never blocks."""

    def _is_silent(self) -> bool:
        return False

    async def _told(self, what: Question, timeout_s: float) -> Answer:
        answer = await self._ask(what, timeout_s)
        if answer.refusal:
            status = 409 if what == "sleep" else 503
            raise RequestError(answer.refusal, code="busy", status=status)
        return answer

    async def _ask(self, what: Question, timeout_s: float) -> Answer:
        ticket, answer = next(self._tickets), Future[Answer]()
        with self._lock:
            self._refuse_if_dead()
            self._asked[ticket] = answer
        self._send(Ask(ticket, what))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        finally:
            with self._lock:
                self._asked.pop(ticket, None)

    def _deliver(self, reply: Reply) -> None:
        """Take a reply; on whatever thread it arrives."""
        match reply:
            case Outputs(outputs):
                self._spread((self._stream_of(one), one) for one in outputs)
            case Rejected():
                self._reject(reply)
            case Answer(ticket):
                with self._lock:
                    asked = self._asked.pop(ticket, None)
                if asked is not None:
                    with suppress(InvalidStateError):  # whoever asked has stopped waiting
                        asked.set_result(reply)
            case Ready(info):
                self._doing = "ready"
                self._ready.set_result(info)
            case Dead(message, details, fixable):
                self._died(EngineDiedError(message, details, fixable=fixable))

    def _stream_of(self, output: RequestOutput) -> Stream | None:
        with self._lock:
            if output.finish is None:
                return self._streams.get(output.id)
            return self._streams.pop(output.id, None)

    def _reject(self, reply: Rejected) -> None:
        with self._lock:
            stream = self._streams.pop(reply.id, None)
        error = RequestError(
            reply.message,
            param=reply.param,
            code=reply.code,
            status=reply.status,
            retry_after_s=reply.retry_after_s,
        )
        self._spread([(stream, error)])

    def _died(self, error: EngineDiedError) -> None:
        """Tell everybody, once."""
        with self._lock:
            if self._death.done():
                return
            self._death.set_result(error)
            streams, self._streams = self._streams, {}
            asked, self._asked = self._asked, {}
        if not self._ready.done():
            self._ready.set_exception(error)
        for one in asked.values():
            with suppress(InvalidStateError):
                one.set_exception(error.copy())
        self._spread((stream, error.copy()) for stream in dict.fromkeys(streams.values()))

    def _refuse_if_dead(self) -> None:
        if self._death.done():
            raise self._death.result().copy()

    @staticmethod
    def _spread(items: Iterable[tuple[Stream | None, RequestOutput | Exception]]) -> None:
        """Hand items to their streams, with one call for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[Stream, list[RequestOutput | Exception]]] = {}
        for stream, item in items:
            if stream is not None:
                by_loop.setdefault(stream.loop, {}).setdefault(stream, []).append(item)
        for loop, batches in by_loop.items():
            with suppress(RuntimeError):  # the event loop is closed: nobody listens there
                loop.call_soon_threadsafe(_feed, batches)


def _feed(batches: dict[Stream, list[RequestOutput | Exception]]) -> None:
    for stream, items in batches.items():
        stream.feed(items)
