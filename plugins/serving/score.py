"""/v1/score: how alike texts are, by the cosine of the angle between their vectors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from camshaft.errors import RequestError
from camshaft.generate import unit

from .body import read_object
from .errors import json_response
from .fields import parse_fields
from .vectors import VectorFields, VectorUsage, vectors_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .service import Service


_OTHER_NAMES = {"query": "text_1", "documents": "text_2"}


class ScoreFields(VectorFields):
    """Of /v1/score; `query` and `documents` are other names of the two sides."""

    text_1: str | list[str]
    text_2: str | list[str]


class Score(msgspec.Struct):
    """Of one pair, from -1 to 1."""

    index: int
    score: float
    object: Literal["score"] = "score"


class Scores(msgspec.Struct):
    """The answer of /v1/score."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage
    object: Literal["list"] = "list"


async def score(service: Service, request: Request) -> Response:
    """Answer with the cosines of pairs of texts: one with each of many, or many one by one."""
    body = _renamed(await read_object(request, service.limits))
    fields = parse_fields(ScoreFields, body)
    left, right = _sides(fields)
    found = await vectors_of(service, request, [*left, *right], fields, "text_1")
    units = [unit(one) for one in found.values]
    firsts, seconds = units[: len(left)], units[len(left) :]
    if len(firsts) == 1:
        firsts *= len(seconds)
    data = [
        Score(at, float(one @ other))
        for at, (one, other) in enumerate(zip(firsts, seconds, strict=True))
    ]
    answer = Scores(
        id=service.answer_id("score", None),
        created=int(time.time()),
        model=service.info.model,
        data=data,
        usage=VectorUsage.of(found.tokens),
    )
    return json_response(answer)


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose texts have the first of their names."""
    for other, name in _OTHER_NAMES.items():
        if other in body and name in body:
            raise RequestError(f"{name} and {other} are one field; give one of them", param=name)
    return {_OTHER_NAMES.get(name, name): value for name, value in body.items()}


def _sides(fields: ScoreFields) -> tuple[list[str], list[str]]:
    left, right = ([one] if isinstance(one, str) else one for one in (fields.text_1, fields.text_2))
    if not right or len(left) not in (1, len(right)):
        raise RequestError(
            f"text_1: {len(left)} texts cannot be paired with {len(right)}: give one, or as many "
            "as there are in text_2",
            param="text_1",
        )
    return left, right
