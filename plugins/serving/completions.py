"""/v1/completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import UNSET

from camshaft.errors import RequestError
from camshaft.generate import Call, best_of, split_prompts
from camshaft.generate.check import Range, check_range

from .body import read_object
from .echo import Echo
from .events import answer
from .fields import CompletionFields, parse_fields
from .params import (
    MOST_CHOICES,
    beams_of,
    cache_scope,
    check_call,
    sampling_params,
    seconds,
)
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
    candidates = _candidates(fields)
    _check_parts(fields, modules)
    params = sampling_params(
        fields,
        service.prompter,
        service.info.vocab,
        max_tokens=_max_tokens(fields),
        logprobs=0 if fields.logprobs is None and _is_ranked(fields) else fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
    )
    beams = beams_of(fields, params, width=candidates, max_running=service.max_running)
    prompts = split_prompts(fields.prompt)
    service.check_queue(len(prompts) * candidates)
    encoded = await service.prompter.encode_all(prompts, affixes=not modules)
    call = Call(
        prompts=encoded,
        params=params,
        modules=modules,
        n=fields.n if beams else candidates,
        salt=fields.cache_salt,
        scope=cache_scope(fields),
        priority=fields.priority,
        ttft_slo_s=seconds(fields.ttft_slo_ms),
        tpot_slo_s=seconds(fields.tpot_slo_ms),
        tenant=fields.user,
        beams=beams,
    )
    echo = Echo(fields, service.tokenizer, prompts, encoded) if fields.echo else None
    writer = CompletionWriter(fields, service, echo)
    return await answer(request, service.run(call, writer.id), writer, stream=fields.stream)


def _check_parts(fields: CompletionFields, modules: tuple[TokenSpan, ...]) -> None:
    """Refuse what does not go together."""
    if fields.echo and modules:
        raise RequestError(
            "echo: a prompt behind modules is not echoed", param="echo", code="unsupported"
        )
    if fields.use_beam_search and (fields.echo or modules):
        name = "echo" if fields.echo else "use_beam_search"
        what = "is not echoed" if fields.echo else "is not continued behind modules"
        raise RequestError(f"{name}: a beam {what}", param=name, code="unsupported")


def _is_ranked(fields: CompletionFields) -> bool:
    """Return whether the writer has to choose among the answers."""
    return not fields.use_beam_search and fields.best_of is not None and fields.best_of > fields.n


def _max_tokens(fields: CompletionFields) -> int:
    """Return how many tokens are made: one at least, which `Echo` takes off if none is wanted."""
    if fields.max_tokens is None:
        return DEFAULT_MAX_TOKENS
    return 1 if fields.echo and fields.max_tokens == 0 else fields.max_tokens


def _candidates(fields: CompletionFields) -> int:
    """Return how many answers are made to each prompt, of which `n` are told."""
    if fields.best_of is None:
        return fields.n
    check_range("best_of", fields.best_of, Range(fields.n, MOST_CHOICES))
    if fields.stream and fields.best_of > fields.n:
        raise RequestError(
            "best_of: which answers are the best is not known while they are streamed",
            param="best_of",
        )
    return fields.best_of


class CompletionWriter:
    """See `camshaft.plugins.serving.events.Writer`; `id` is the answer's."""

    def __init__(
        self, fields: CompletionFields, service: Service, echo: Echo | None = None
    ) -> None:
        self._fields = fields
        self._echo = echo
        self.id = service.answer_id("cmpl", fields.request_id)
        self._created = int(time.time())
        self._model = service.info.model

    def whole(self, choices: Sequence[generate.Choice], usage: generate.Usage) -> Completion:
        """Return the body of an answer that is not streamed."""
        candidates = self._fields.best_of
        if candidates is not None and _is_ranked(self._fields):
            choices = best_of(choices, candidates, self._fields.n)
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
        if isinstance(counted, Usage) and self._echo is not None and self._echo.alone:
            counted.completion_tokens, counted.total_tokens = 0, counted.prompt_tokens
        return Completion(self.id, self._created, self._model, choices, counted)

    def _choice(self, delta: generate.Delta) -> CompletionChoice:
        wants = self._fields
        if self._echo is not None:
            delta, logprobs = self._echo.answer(delta)
        else:
            logprobs = None if wants.logprobs is None else CompletionLogprobs.of(delta.logprobs)
        return CompletionChoice(
            index=delta.index,
            text=delta.text,
            logprobs=logprobs,
            finish_reason=delta.finish,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if wants.return_token_ids else UNSET,
        )
