"""`docs/api.md` names every endpoint, field, range, default and metric of the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from starlette.routing import Route

from camshaft.client import LocalClient
from camshaft.generate.check import RANGES, Range
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.embeddings import EmbeddingFields
from camshaft.plugins.serving.fields import (
    LATER,
    NO_SEMANTICS,
    ChatFields,
    CompletionFields,
    Fields,
)
from camshaft.plugins.serving.service import Service
from camshaft.recipe import ServerSection
from camshaft.testing.scripted import ScriptedEngine

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def rows(start: str, end: str) -> dict[str, tuple[str, str]]:
    """What the fields between two texts of the page take, and their defaults."""
    part = PAGE[PAGE.index(start) : PAGE.index(end)]
    found = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|", part, re.MULTILINE)
    return {name: (takes, default) for name, takes, default in found}


BOTH = rows("Both endpoints:", "Only `/v1/completions`")
COMPLETIONS = rows("Only `/v1/completions`", "Only `/v1/chat/completions`")
VECTORS = rows("## Vectors", "## Prompts out of modules")
CHAT = rows("Only `/v1/chat/completions`", "Roles are")


def own(form: type[Fields]) -> set[str]:
    return set(form.model_fields) - set(Fields.model_fields)


def test_every_field_is_there_and_no_other() -> None:
    assert set(BOTH) == set(Fields.model_fields)
    assert set(COMPLETIONS) == own(CompletionFields)
    assert set(CHAT) == own(ChatFields)
    assert set(VECTORS) == set(EmbeddingFields.model_fields)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (Fields, BOTH),
        (CompletionFields, COMPLETIONS),
        (ChatFields, CHAT),
        (EmbeddingFields, VECTORS),
    ],
    ids=["both", "completions", "chat", "vectors"],
)
def test_defaults_are_as_told(form: type[BaseModel], told: dict[str, tuple[str, str]]) -> None:
    words = {name: default for name, (_, default) in told.items() if name != "max_tokens"}
    assert words == {name: default_of(form.model_fields[name].default) for name in words}


def default_of(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    return "none" if value in (None, "", [], {}) and value is not False else str(value).lower()


@pytest.mark.parametrize("name", sorted({*BOTH} & {*RANGES} - {"seed"}))
def test_ranges_are_as_told(name: str) -> None:
    assert BOTH[name][0].startswith(in_words(RANGES[name]))


def in_words(one: Range) -> str:
    least = f"above {one.least:g}" if one.above else f"from {one.least:g}"
    return least if one.most == float("inf") else f"{least} to {one.most:.12g}"


def test_fields_without_effect_and_those_that_come_later_are_listed() -> None:
    listed = PAGE[PAGE.index("**Accepted without effect**") : PAGE.index("## Rules")]
    assert set(re.findall(r"`(\w+)`", listed)) == {*NO_SEMANTICS, *LATER}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    engine = ScriptedEngine()
    client = LocalClient(lambda: (engine, engine.traits.info))
    yield Service(client, ServerSection(), max_running=1)
    client.close()


def test_endpoints_are_listed(service: Service) -> None:
    paths = {
        f"{method} {route.path.replace(':path', '')}"
        for route in create_app(service).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert set(re.findall(r"`((?:GET|POST) /[^`]*)`", PAGE)) == paths


def test_metrics_are_listed(service: Service) -> None:
    snapshot = asyncio.run(service.client.snapshot())
    text = service.metrics.text(snapshot, service.client.info.page_bytes)
    families = text_string_to_metric_families(text.decode())
    names = {family.name for family in families if not family.name.endswith("_created")}
    assert set(re.findall(r"`(camshaft_\w+)`", PAGE)) == names
