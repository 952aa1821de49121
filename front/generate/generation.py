"""Running a call: its requests, the merging of their outputs, and the usage."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

from .answers import Choice, Usage
from .beam_run import BeamRun
from .choice import ChoiceText
from .requests import raise_failure, request_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from camshaft.client import EngineClient
    from camshaft.request import RequestOutput
    from camshaft.text import Tokenizer

    from .answers import Call, Delta

_READ_AT_ONCE = 256
"""Prompt tokens whose logprobs are made text in one go: with 20 alternatives each 14 ms."""


class Generation:
    """The answers to one call, while they are made.

    Attributes:
        usages: Of each prompt, so far.
        queued_s: Seconds that the first answer to begin waited for its first step; None before.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, call: Call) -> None:
        before = sum(len(module.ids) for module in call.modules)
        self.usages = [Usage(prompt_tokens=before + len(prompt)) for prompt in call.prompts]
        self._client = client
        self._call = call
        self.queued_s: float | None = None
        self._beams: BeamRun | None = None
        if call.beams is not None:
            self._beams = BeamRun(client, tokenizer, call, self.usages)
        name = uuid.uuid4().hex
        self._requests = [request_of(call, index, name) for index in range(call.choices)]
        self._texts = {
            request.id: ChoiceText(index, tokenizer, request.params, call.prompts[index // call.n])
            for index, request in enumerate(self._requests)
        }

    @property
    def usage(self) -> Usage:
        """Of the whole call, so far."""
        return Usage(
            sum(one.prompt_tokens for one in self.usages),
            sum(one.completion_tokens for one in self.usages),
            sum(one.cached_tokens for one in self.usages),
        )

    async def cancel(self) -> None:
        """End all requests now; whoever iterates gets a `RequestError` with code `aborted`."""
        if self._beams is not None:
            await self._beams.cancel()
            return
        for request in self._requests:
            await self._client.abort(request.id)

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Yield what every step adds, of all choices as they come.

        Requests are aborted when the iteration stops early, by `aclose` or cancellation.

        Raises:
            RequestError: The engine refused a request, or one ended in an error; the others are
                aborted.
            EngineDiedError: The engine died.
        """
        if self._beams is not None:
            async with aclosing(self._beams.deltas()) as found:
                async for answer in found:
                    self.queued_s = self._beams.queued_s
                    yield answer
            return
        async with self._client.open(self._requests) as stream:
            async for output in stream:
                text = self._texts[output.id]
                raise_failure(output)
                self._note(text.index, output)
                for first in range(0, len(output.prompt_logprobs), _READ_AT_ONCE):
                    text.push_prompt(output.prompt_logprobs[first : first + _READ_AT_ONCE])
                    await asyncio.sleep(0)  # others get their turn within a long prompt
                delta = text.push(output)
                if text.finished and output.finish is None:
                    stream.abort(output.id, "stop", text.tokens)
                if delta is not None:
                    usage = self.usages[delta.index // self._call.n]
                    usage.completion_tokens += len(delta.token_ids)
                    yield delta

    async def choices(self) -> list[Choice]:
        """Run to the end and return all choices, by index. Raises as `deltas`."""
        found = [Choice(index) for index in range(self._call.choices)]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                found[delta.index].add(delta)
        return found

    def _note(self, index: int, output: RequestOutput) -> None:
        if self.queued_s is None:
            self.queued_s = output.queued_s
        prompt, sample = divmod(index, self._call.n)
        if sample == 0:  # the engine repeats the number in every output
            self.usages[prompt].cached_tokens = output.cached_tokens
