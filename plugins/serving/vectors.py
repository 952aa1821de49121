"""What the endpoints for vectors share: their fields, and the running of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
from pydantic import BaseModel, ConfigDict

from camshaft.errors import RequestError
from camshaft.generate import Call, check_name, pooled, split_prompts
from camshaft.generate.check import check_range

from .events import unless_gone
from .params import PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from .service import Service

MOST_TEXTS = 2048
"""Of a call, as OpenAI has it."""
_AT_ONCE = 256
"""Texts of a call that the engine has at once: others find a place in the queue beside them."""


class VectorFields(BaseModel):
    """What all of them take beside their texts."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    user: str = ""
    # not in OpenAI's API:
    pooling: Literal["mean", "last", "cls"] | None = None
    cache_salt: str = ""
    priority: int = 0


class VectorUsage(msgspec.Struct):
    """Tokens of a call."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> VectorUsage:
        """Return that of a call that generates nothing."""
        return cls(tokens, tokens)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of texts, as the model made them.

    Attributes:
        values: One for each text, in order.
        tokens: Of all texts.
    """

    values: list[list[float]]
    tokens: int


async def vectors_of(
    service: Service, request: Request, texts: object, fields: VectorFields, param: str
) -> Vectors:
    """Return the vectors of texts.

    Args:
        service: Whose model makes them.
        request: Ends the work when its client leaves.
        texts: A text, texts, token ids, or lists of ids.
        fields: How.
        param: Field that a refusal of a text names.

    Raises:
        RequestError: Names the field.
        ClientGoneError: The client left.
    """
    service.check_model(fields.model)
    check_name("cache_salt", fields.cache_salt)
    check_name("user", fields.user)
    check_range("priority", fields.priority, PRIORITY)
    prompts = split_prompts(texts, param)
    if len(prompts) > MOST_TEXTS:
        raise RequestError(f"{param} takes at most {MOST_TEXTS} texts", param=param)
    params = pooled(fields.pooling, service.text, service.info)
    service.check_queue(1)
    encoded = await service.prompter.encode_all(prompts, param=param, answer=0)
    calls = [
        Call(
            prompts=part,
            params=params,
            salt=fields.cache_salt,
            priority=fields.priority,
            tenant=fields.user,
        )
        for part in _parts(encoded, min(_AT_ONCE, service.most_open))
    ]
    values = await unless_gone(request, _run(service, calls))
    return Vectors(values, sum(map(len, encoded)))


def _parts(prompts: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    for first in range(0, len(prompts), size):
        yield prompts[first : first + size]


async def _run(service: Service, calls: list[Call]) -> list[list[float]]:
    """Run calls one after the other, and join what they bring."""
    name, found = service.answer_id("embd", None), list[list[float]]()
    for call in calls:
        found += [one.embedding for one in await service.run(call, name).choices()]
    return found
