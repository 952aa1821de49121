"""/v1/completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import UNSET

from camshaft.generate import Call, split_prompts

from .body import read_object
from .events import answer
from .fields import CompletionFields, parse_fields
from .params import cache_scope, check_call, sampling_params, seconds
from .wire import Completion, CompletionChoice, CompletionLogprobs, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from camshaft import generate
    from camshaft.request import TokenSpan

    from .service import Service

DEFAULT_MAX_TOKENS = 16


async def complete(service: Service, request: Request) -> Response:
    """Continue one or more prompts."""
    fields = parse_fields(CompletionFields, await read_object(request, service.limits))
    return await run_completion(service, request, fields)


async def run_completion(
    service: Service,
    request: Request,
    fields: CompletionFields,
    modules: tuple[TokenSpan, ...] = (),
) -> Response:
    """Continue the prompts of `fields`, each of them behind `modules`."""
    service.check_model(fields.model)
    check_call(fields)
    params = sampling_params(
        fields,
        service.prompter,
        service.info.vocab,
        max_tokens=DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens,
        logprobs=fields.logprobs,
    )
    prompts = split_prompts(fields.prompt)
    service.check_queue(len(prompts) * fields.n)
    call = Call(
        prompts=await service.prompter.encode_all(prompts, affixes=not modules),
        params=params,
        modules=modules,
        n=fields.n,
        salt=fields.cache_salt,
        scope=cache_scope(fields),
        priority=fields.priority,
        ttft_slo_s=seconds(fields.ttft_slo_ms),
        tpot_slo_s=seconds(fields.tpot_slo_ms),
        tenant=fields.user,
    )
    writer = CompletionWriter(fields, service)
    return await answer(request, service.run(call, writer.id), writer, stream=fields.stream)


class CompletionWriter:
    """See `camshaft.plugins.serving.events.Writer`; `id` is the answer's."""

    def __init__(self, fields: CompletionFields, service: Service) -> None:
        self._fields = fields
        self.id = service.answer_id("cmpl", fields.request_id)
        self._created = int(time.time())
        self._model = service.info.model

    def whole(self, choices: Sequence[generate.Choice], usage: generate.Usage) -> Completion:
        """Return the body of an answer that is not streamed."""
        return self._completion([self._choice(one) for one in choices], usage)

    def opening(self) -> Iterator[Completion]:
        """Yield nothing: the first event has text."""
        return iter(())

    def piece(self, delta: generate.Delta) -> Completion:
        """Return the event for what a step brought."""
        return self._completion([self._choice(delta)])

    def closing(self, usage: generate.Usage) -> Iterator[Completion]:
        """Yield the usage, if asked for."""
        if self._fields.include_usage:
            yield self._completion([], usage)

    def _completion(
        self, choices: list[CompletionChoice], usage: generate.Usage | None = None
    ) -> Completion:
        counted = UNSET if usage is None else Usage.of(usage)
        return Completion(self.id, self._created, self._model, choices, counted)

    def _choice(self, delta: generate.Delta) -> CompletionChoice:
        wants = self._fields
        return CompletionChoice(
            index=delta.index,
            text=delta.text,
            logprobs=None if wants.logprobs is None else CompletionLogprobs.of(delta.logprobs),
            finish_reason=delta.finish,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if wants.return_token_ids else UNSET,
        )
