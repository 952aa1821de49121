"""/tokenize and /detokenize: what a prompt costs, and what ids say, without running anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from pydantic import BaseModel, ConfigDict

from camshaft.errors import RequestError

from .body import read_object
from .chat import checked_message, opens_turn
from .errors import json_response
from .fields import parse_fields

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .service import Service

_MANY = 5000
"""Ids from which on their text is made on a thread, so that streams go on meanwhile."""


class TokenizeFields(BaseModel):
    """Of /tokenize: either `prompt`, read as /v1/completions does, or `messages`, as in a chat."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: list[object] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class DetokenizeFields(BaseModel):
    """Of /detokenize."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: list[int]


class Tokens(msgspec.Struct):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(msgspec.Struct):
    """The answer of /detokenize."""

    prompt: str


async def tokenize(service: Service, request: Request) -> Response:
    """Answer with the ids of a text or a conversation; what no engine takes is refused alike."""
    fields = parse_fields(TokenizeFields, await read_object(request, service.limits))
    service.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if fields.prompt is not None:
        _refuse_chat_fields(fields)
        ids = await service.prompter.encode(fields.prompt, affixes=fields.add_special_tokens)
    else:
        assert fields.messages is not None
        if not fields.add_special_tokens:
            raise RequestError(
                "add_special_tokens: a template decides it for messages", param="add_special_tokens"
            )
        ids = await service.prompter.render(
            [checked_message(one, place) for place, one in enumerate(fields.messages)],
            add_generation_prompt=opens_turn(
                fields.add_generation_prompt, fields.continue_final_message
            ),
            continue_final=fields.continue_final_message,
        )
    return json_response(Tokens(ids, len(ids), service.info.room))


async def detokenize(service: Service, request: Request) -> Response:
    """Answer with the text of ids, control tokens included, as the continuation of a text."""
    fields = parse_fields(DetokenizeFields, await read_object(request, service.limits))
    service.check_model(fields.model)
    ids, vocab = fields.tokens, service.info.vocab
    wrong = next((one for one in ids if not 0 <= one < vocab), None)
    if wrong is not None:
        message = f"tokens holds {wrong}; this model has the ids 0 to {vocab - 1}"
        raise RequestError(message, param="tokens")
    decode = service.tokenizer.decode
    text = decode(ids) if len(ids) < _MANY else await asyncio.to_thread(decode, ids)
    return json_response(Detokenized(text))


def _refuse_chat_fields(fields: TokenizeFields) -> None:
    for name in ("add_generation_prompt", "continue_final_message"):
        if getattr(fields, name):
            raise RequestError(f"{name} needs messages", param=name)
