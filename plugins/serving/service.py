"""What a server serves: one engine, the text side of its model, and the limits."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from camshaft.errors import RequestError
from camshaft.generate import Generation, Prompter

from .body import BodyLimits
from .call_log import CallLog
from .metrics import Meter, Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from camshaft.client import EngineClient
    from camshaft.generate import Call, Delta
    from camshaft.info import EngineInfo
    from camshaft.recipe import ServerSection
    from camshaft.text import TextModel, Tokenizer

    from .keys import Keys

Phase = Literal["starting", "ready", "silent", "restarting", "paused", "asleep", "stopping", "dead"]


class Service:
    """The state behind the endpoints."""

    def __init__(
        self,
        client: EngineClient,
        settings: ServerSection,
        *,
        max_running: int,
        keys: Keys | None = None,
    ) -> None:
        """Begin; endpoints refuse everything until `start`.

        Args:
            client: Of an engine that may still be starting.
            settings: Of the server.
            max_running: Requests that the engine runs at once.
            keys: One of them has to be shown; None lets everybody in.
        """
        self.keys = keys
        self.client = client
        self.metrics = Metrics()
        self.created = int(time.time())
        self.stopping = False
        self.paused = False
        self.asleep = False
        self.open_calls: set[ServedGeneration] = set()
        self.limits = BodyLimits(settings.body_bytes, settings.body_wait_s, settings.json_depth)
        self._text: TextModel | None = None
        self._prompter: Prompter | None = None
        self.max_running = max_running
        self.shutdown_s = settings.shutdown_s
        self._most_open = max_running + settings.max_queue

    def start(self, text: TextModel) -> None:
        """Open the endpoints: the engine is ready."""
        self._text = text

    @property
    def phase(self) -> Phase:
        """Whether requests are taken, and if not, why."""
        state = self.client.state
        if self.stopping and state != "dead":
            return "stopping"
        if state == "ready" and self._text is None:
            return "starting"
        if state == "ready" and self.asleep:
            return "asleep"
        return "paused" if state == "ready" and self.paused else state

    @property
    def info(self) -> EngineInfo:
        """Of the engine."""
        return self.client.info

    @property
    def prompter(self) -> Prompter:
        """Makes token ids that fit the engine as it is now."""
        info = self.client.info
        if self._prompter is None or self._prompter.info is not info:
            self._prompter = Prompter(self.text, info)
        return self._prompter

    @property
    def text(self) -> TextModel:
        """Of the model."""
        assert self._text is not None, "the gate lets nobody through before the start"
        return self._text

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self.text.tokenizer

    @property
    def most_open(self) -> int:
        """Answers that may run or wait at once."""
        return self._most_open

    def refusal(self) -> RequestError | None:
        """Return why no request is taken now, or None."""
        match self.phase:
            case (
                "ready" | "paused" | "asleep"
            ):  # what runs no engine is answered, and `check_queue` refuses
                return None
            case "starting":
                text, again = f"the engine is starting: {self.client.doing}", 5.0
            case "restarting":
                text, again = f"the engine died and is started anew: {self.client.doing}", 5.0
            case "silent":
                text, again = "the engine does not answer", 10.0
            case "stopping":
                text, again = "the server is stopping", 30.0
            case _:
                text, again = "the engine is gone", 30.0
        return RequestError(text, code=self.phase, status=503, retry_after_s=again)

    def check_model(self, name: str | None) -> None:
        """Refuse another model than the one that is served; no name means that one.

        Raises:
            RequestError: With status 404.
        """
        if name is not None and name != self.info.model:
            raise RequestError(
                f"there is no model '{name:.200}'; this server has '{self.info.model}'",
                param="model",
                code="model_not_found",
                status=404,
            )

    def check_queue(self, choices: int) -> None:
        """Refuse a call that the queue has no place for.

        Raises:
            RequestError: The queue is full, the call alone would fill it, or the server is paused
                or asleep.
        """
        if self.asleep or self.paused:
            how = "asleep" if self.asleep else "paused"
            raise RequestError(f"the server is {how}", code=how, status=503, retry_after_s=30.0)
        if choices > self._most_open:
            raise RequestError(
                f"n: {choices} answers are asked for; this server makes at most "
                f"{self._most_open} at once",
                param="n",
            )
        if self.client.open_requests + choices > self._most_open:
            raise RequestError(
                "the queue is full", code="queue_full", status=429, retry_after_s=1.0
            )

    def run(self, call: Call, answer_id: str) -> Generation:
        """Prepare the answers to a call. The queue is checked again when they start."""
        return ServedGeneration(self, self.tokenizer, call, answer_id)

    async def cancel(self, answer_id: str) -> int:
        """End the calls whose answers have this id; return how many there are.

        Raises:
            RequestError: With status 404: none is open.
        """
        found = [one for one in self.open_calls if one.id == answer_id]
        if not found:
            raise RequestError(
                f"no answer '{answer_id:.200}' is being made", code="not_open", status=404
            )
        for one in found:
            await one.cancel()
        return len(found)

    def answer_id(self, prefix: str, request_id: str | None) -> str:
        """Return the id of an answer; the engine has its own, so a client's may repeat."""
        return f"{prefix}-{request_id or uuid.uuid4().hex}"


class ServedGeneration(Generation):
    """A generation that has a place in the queue, is measured, and can be cancelled.

    Attributes:
        id: Of the answer.
    """

    def __init__(self, service: Service, tokenizer: Tokenizer, call: Call, answer_id: str) -> None:
        super().__init__(service.client, tokenizer, call)
        self.id = answer_id
        self._service = service
        self._choices = call.choices
        self._meter = Meter(service.metrics, call)
        self._log = CallLog(answer_id, call)
        self._cancelled = False

    async def cancel(self) -> None:
        """See `Generation.cancel`."""
        self._cancelled = True
        await super().cancel()

    async def deltas(self) -> AsyncGenerator[Delta]:
        """See `Generation.deltas`."""
        self._service.check_queue(self._choices)
        self._service.open_calls.add(self)
        ended_by: BaseException | None = None
        try:
            async with aclosing(self._measured()) as deltas:
                async for delta in deltas:
                    yield delta
        except BaseException as error:
            ended_by = error
            raise
        finally:
            self._service.open_calls.discard(self)
            self._log.ended(self, ended_by)

    async def _measured(self) -> AsyncGenerator[Delta]:
        try:
            async with aclosing(super().deltas()) as deltas:
                async for delta in deltas:
                    self._meter.observe(delta)
                    self._log.observe(delta)
                    yield delta
        except RequestError as error:
            if error.code == "refused":
                self._meter.refused()
            if error.code == "aborted" and self._cancelled:
                raise RequestError("it was cancelled", code="cancelled", status=409) from None
            raise
