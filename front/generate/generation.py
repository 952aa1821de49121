"""Running a call: its requests, the merging of their outputs, and the usage."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from camshaft.errors import RequestError
from camshaft.request import Request, TokenSpan

from .answers import Choice, Usage
from .choice import ChoiceText

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
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, call: Call) -> None:
        before = sum(len(module.ids) for module in call.modules)
        self.usages = [Usage(prompt_tokens=before + len(prompt)) for prompt in call.prompts]
        self._client = client
        self._call = call
        self._requests = [_request(call, index, uuid.uuid4().hex) for index in range(call.choices)]
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
        async with self._client.open(self._requests) as stream:
            async for output in stream:
                text = self._texts[output.id]
                self._raise_failure(output)
                self._count_cached(text.index, output)
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

    def _count_cached(self, index: int, output: RequestOutput) -> None:
        prompt, sample = divmod(index, self._call.n)
        if sample == 0:  # the engine repeats the number in every output
            self.usages[prompt].cached_tokens = output.cached_tokens

    @staticmethod
    def _raise_failure(output: RequestOutput) -> None:
        match output.finish:
            case "error":
                raise RequestError(output.message, code="engine_error", status=500)
            case "refused":
                raise RequestError(
                    output.message,
                    code="refused",
                    status=503 if output.retry_after_s is None else 429,
                    retry_after_s=output.retry_after_s,
                )
            case "abort":
                raise RequestError("the request was aborted", code="aborted", status=503)


def _request(call: Call, index: int, call_id: str) -> Request:
    prompt, sample = divmod(index, call.n)
    params = call.params
    if params.seed is not None:
        params = msgspec.structs.replace(params, seed=(params.seed + sample) % 2**64)
    return Request(
        id=f"{call_id}-{index}",
        spans=(*call.modules, TokenSpan(call.prompts[prompt])),
        params=params,
        salt=call.salt,
        scope=call.scope,
        priority=call.priority,
        ttft_slo_s=call.ttft_slo_s,
        tpot_slo_s=call.tpot_slo_s,
        tenant=call.tenant,
    )
