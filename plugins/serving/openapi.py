"""/openapi.json: what each endpoint takes and answers, from the models that read and write it."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic.json_schema import models_json_schema

from camshaft.generate.check import LENGTH_PENALTY, RANGES, Range

from .chat import ROLES
from .embeddings import EmbeddingFields, Embeddings, PooledTexts, PoolingFields
from .errors import ErrorAnswer
from .fields import LATER, NO_SEMANTICS, ChatFields, CompletionFields
from .params import MOST_CHOICES, PRIORITY
from .score import ScoreFields, Scores
from .tokenizing import Detokenized, DetokenizeFields, TokenizeFields, Tokens
from .wire import ChatCompletion, Completion, Model, Models

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

CHOICES = Range(1, MOST_CHOICES)
_REFS = "#/components/schemas/{}"

_PROMPT = {
    "description": "A text, token ids, or a list of either.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ],
}

_TEXTS = {
    "description": "A text, or a list of them; several of both are pairs.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    ],
}

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
            "name": {"type": ["string", "null"]},
            "tool_call_id": {"type": ["string", "null"]},
        },
        "required": ["role", "content"],
    },
}

POSTS: dict[str, tuple[type[BaseModel], type[msgspec.Struct], str]] = {
    "/v1/completions": (CompletionFields, Completion, "continue prompts"),
    "/v1/chat/completions": (ChatFields, ChatCompletion, "answer a conversation"),
    "/v1/embeddings": (EmbeddingFields, Embeddings, "vectors of texts, of length 1"),
    "/v1/score": (ScoreFields, Scores, "how alike texts are, by their vectors"),
    "/pooling": (PoolingFields, PooledTexts, "vectors of texts, as the model made them"),
    "/tokenize": (TokenizeFields, Tokens, "token ids of a prompt or a conversation"),
    "/detokenize": (DetokenizeFields, Detokenized, "the text of token ids"),
}
"""Endpoints with a body: how it is read, what is answered, and what they are for."""

GETS: dict[str, tuple[type[msgspec.Struct] | None, str]] = {
    "/v1/models": (Models, "the one model that is served"),
    "/v1/models/{name}": (Model, "the same, by its name"),
    "/health": (None, "whether requests are taken"),
    "/info": (None, "what runs"),
    "/metrics": (None, "counters for Prometheus"),
}
"""Endpoints without, and what they answer where it is in a form of its own."""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the endpoints that every server has."""
    bodies = [form for form, _, _ in POSTS.values()]
    _, read = models_json_schema(
        [(form, "validation") for form in bodies], ref_template=_REFS.format("{model}")
    )
    answers: list[type] = [answer for _, answer, _ in POSTS.values()]
    answers += [answer for answer, _ in GETS.values() if answer is not None]
    _, written = msgspec.json.schema_components(
        [*answers, ErrorAnswer], ref_template=_REFS.format("{name}")
    )
    schemas = {**written, **read["$defs"]}
    schemas["CompletionFields"]["properties"]["prompt"] = _PROMPT
    for name in ("EmbeddingFields", "PoolingFields"):
        schemas[name]["properties"]["input"] = _PROMPT
    schemas["EmbeddingFields"]["properties"]["dimensions"] = {"type": "null"}  # refused by name
    for side in ("text_1", "text_2"):
        schemas["ScoreFields"]["properties"][side] = _TEXTS
    for name in ("EmbeddingFields", "PoolingFields", "ScoreFields"):
        schemas[name]["properties"]["priority"] |= _range(PRIORITY)
    schemas["ChatFields"]["properties"]["messages"] = _MESSAGES
    schemas["TokenizeFields"]["properties"]["messages"] = _MESSAGES
    for name in ("CompletionFields", "ChatFields"):
        _add_others(schemas[name])
    paths: dict[str, dict[str, Any]] = {
        path: {"post": _operation(summary, _ref(answer), body=_ref(form))}
        for path, (form, answer, summary) in POSTS.items()
    }
    for path, (answer, summary) in GETS.items():
        paths[path] = {"get": _operation(summary, None if answer is None else _ref(answer), path)}
    paths["/v1/cancel/{answer_id}"] = {
        "post": _operation("end the making of an answer", {"type": "object"}, "/{answer_id}")
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "camshaft", "version": version("camshaft")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],  # only servers with keys ask for one
    }


def _add_others(schema: dict[str, Any]) -> None:
    """Add the ranges of numbers, and fields that are taken if they ask for nothing."""
    ranges = {
        **RANGES,
        "n": CHOICES,
        "best_of": CHOICES,
        "priority": PRIORITY,
        "length_penalty": LENGTH_PENALTY,
    }
    for name, allowed in ranges.items():
        if name in schema["properties"]:
            schema["properties"][name] |= _range(allowed)
    for name in sorted(NO_SEMANTICS):
        schema["properties"][name] = {"description": "Has no effect."}
    for name, harmless in LATER.items():
        if harmless:
            values = [*harmless, None]
            schema["properties"][name] = {"enum": values, "description": "Not supported yet."}
    for name, field in schema["properties"].items():  # null counts as absent
        is_open = {"type": "null"} in field.get("anyOf", ()) or "enum" in field
        if name not in schema["required"] and not is_open:
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


def _range(allowed: Range) -> dict[str, float]:
    found = {"exclusiveMinimum" if allowed.above else "minimum": allowed.least}
    return found | ({} if math.isinf(allowed.most) else {"maximum": allowed.most})


def _operation(
    summary: str,
    answer: Mapping[str, Any] | None,
    path: str = "",
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        done["content"] = {"application/json": {"schema": answer}}
        if body is not None and "Completion" in answer["$ref"]:
            done["content"]["text/event-stream"] = {}
    failed = {
        "description": "Refused or failed.",
        "content": {"application/json": {"schema": _ref(ErrorAnswer)}},
    }
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": done, "4XX": failed, "503": failed},
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    if "{" in path:
        name = path.rpartition("{")[2].rstrip("}")
        place = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [place]
    return operation


def _ref(form: type) -> dict[str, str]:
    return {"$ref": _REFS.format(form.__name__)}
