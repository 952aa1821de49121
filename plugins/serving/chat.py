"""/v1/chat/completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from camshaft.errors import RequestError, did_you_mean
from camshaft.generate import Call
from camshaft.generate.check import RANGES, check_range

from .body import read_object
from .events import answer
from .fields import ChatFields, parse_fields
from .params import beams_of, cache_scope, check_call, sampling_params, seconds
from .wire import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from camshaft import generate

    from .service import Service

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id")
MESSAGE_LATER = ("tool_calls", "function_call", "audio", "refusal", "annotations")
"""Parts of answers that other servers give; clients send them back, mostly as null."""


async def chat(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    fields = parse_fields(ChatFields, await read_object(request, service.limits))
    service.check_model(fields.model)
    check_call(fields)
    prompter = service.prompter
    # Parameters come before the prompt: they are cheap to refuse.
    room = service.info.room
    wanted = _max_tokens(fields)
    params = sampling_params(
        fields,
        prompter,
        service.info.vocab,
        max_tokens=room if wanted is None else wanted,
        logprobs=_logprobs(fields),
    )
    beams = beams_of(fields, params, width=fields.n, max_running=service.max_running)
    service.check_queue(fields.n)
    prompt = await prompter.render(
        [checked_message(one, place) for place, one in enumerate(fields.messages)],
        add_generation_prompt=opens_turn(
            fields.add_generation_prompt, fields.continue_final_message
        ),
        continue_final=fields.continue_final_message,
    )
    call = Call(
        prompts=[prompt],
        params=params,
        n=fields.n,
        salt=fields.cache_salt,
        scope=cache_scope(fields),
        priority=fields.priority,
        ttft_slo_s=seconds(fields.ttft_slo_ms),
        tpot_slo_s=seconds(fields.tpot_slo_ms),
        tenant=fields.user,
        beams=beams,
    )
    writer = ChatWriter(fields, service)
    return await answer(request, service.run(call, writer.id), writer, stream=fields.stream)


def _max_tokens(fields: ChatFields) -> int | None:
    given = {fields.max_tokens, fields.max_completion_tokens} - {None}
    if len(given) > 1:
        raise RequestError(
            "max_completion_tokens and max_tokens differ; give one of them",
            param="max_completion_tokens",
        )
    return given.pop() if given else None


def _logprobs(fields: ChatFields) -> int | None:
    top = fields.top_logprobs
    if top is None:
        return 0 if fields.logprobs else None
    if not fields.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    check_range("top_logprobs", top, RANGES["logprobs"])
    return top


def opens_turn(wanted: bool | None, continues: bool) -> bool:
    """Return whether an assistant turn is opened: unless the last message is to be continued."""
    return not continues if wanted is None else wanted


def checked_message(message: object, place: int) -> dict[str, Any]:
    """Return a message as templates take it; its content is theirs to judge.

    Raises:
        RequestError: It is none, or has a role or a field that is not known.
    """
    where = f"messages[{place}]"
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object", param="messages")
    kept = {name: value for name, value in message.items() if value is not None}
    for name, value in list(kept.items()):
        if name in MESSAGE_FIELDS:
            continue
        if name not in MESSAGE_LATER:
            hint = did_you_mean(name, MESSAGE_FIELDS)
            raise RequestError(f"{where} has no field '{name:.100}'{hint}", param="messages")
        if value not in ([], ""):
            raise RequestError(f"{where}.{name} is not supported yet", param="messages")
        del kept[name]
    role = kept.get("role")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise RequestError(f"{where}.role must be one of {known}", param="messages")
    # OpenAI's name for the same thing; templates know only the older one.
    return kept | {"role": "system"} if role == "developer" else kept


class ChatWriter:
    """See `camshaft.plugins.serving.events.Writer`; `id` is the answer's."""

    def __init__(self, fields: ChatFields, service: Service) -> None:
        self._fields = fields
        self.id = service.answer_id("chatcmpl", fields.request_id)
        self._created = int(time.time())
        self._model = service.info.model

    def whole(self, choices: Sequence[generate.Choice], usage: generate.Usage) -> ChatCompletion:
        """Return the body of an answer that is not streamed."""
        return ChatCompletion(
            self.id,
            self._created,
            self._model,
            [
                ChatChoice(
                    index=one.index,
                    message=ChatMessage(one.text),
                    logprobs=self._logprobs(one),
                    finish_reason=one.finish,
                    stop_reason=one.stop_reason,
                    token_ids=self._token_ids(one),
                )
                for one in choices
            ],
            Usage.of(usage),
        )

    def opening(self) -> Iterator[ChatChunk]:
        """Yield the role of every choice."""
        for index in range(self._fields.n):
            yield self._chunk([ChatChunkChoice(index, ChatDelta(content="", role="assistant"))])

    def piece(self, delta: generate.Delta) -> ChatChunk:
        """Return the event for what a step brought."""
        choice = ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(delta.text) if delta.text else ChatDelta(),
            logprobs=self._logprobs(delta),
            finish_reason=delta.finish,
            stop_reason=UNSET if delta.finish is None else delta.stop_reason,
            token_ids=self._token_ids(delta),
        )
        return self._chunk([choice])

    def closing(self, usage: generate.Usage) -> Iterator[ChatChunk]:
        """Yield the usage, if asked for."""
        if self._fields.include_usage:
            yield self._chunk([], usage)

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: generate.Usage | None = None
    ) -> ChatChunk:
        counted = UNSET if usage is None else Usage.of(usage)
        return ChatChunk(self.id, self._created, self._model, choices, counted)

    def _logprobs(self, delta: generate.Delta) -> ChatLogprobs | None:
        return ChatLogprobs.of(delta.logprobs) if self._fields.logprobs else None

    def _token_ids(self, delta: generate.Delta) -> list[int] | UnsetType:
        return delta.token_ids if self._fields.return_token_ids else UNSET
