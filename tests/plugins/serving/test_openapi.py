"""/openapi.json, and bodies made at random of what it allows and of what it does not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from starlette.routing import Route

from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.openapi import openapi

JUNK: list[Any] = [
    None, True, -1, 0, 1, 3, 0.5, 1e308, 5e-324, -(2**63), 2**64, "", "a", "\u0000", "😀", [], [[]],
    [1], ["a"], [None], {}, {"a": {}}, {"65": 100}, {"type": "text"}, "x" * 300,
]  # fmt: skip
USUAL: dict[str, list[Any]] = {
    "prompt": ["Hi", [1, 2], ["a", "b"], [[1], [2]]],
    "messages": [[{"role": "user", "content": "Hi"}], [{"role": "assistant", "content": []}]],
    "tokens": [[1, 2, 3], []],
    "input": ["Hi", [1, 2], ["a", "b"], [[1], [2]]],
    "encoding_format": ["float", "base64"],
    "pooling": ["mean", "last"],
    "text_1": ["a", ["b"]],
    "text_2": ["c", ["d", "e"]],
    "dimensions": [None],
    "max_tokens": [1, 3],
    "stream": [True, False],
    "n": [1, 2],
    "stop": ["a", ["b", "c"]],
    "seed": [7],
}


@pytest.fixture(scope="module")
def document(server) -> Any:
    return server.http.get("/openapi.json").json()


def test_it_is_served_and_names_every_endpoint(server, document: Any) -> None:
    assert document == json.loads(json.dumps(openapi()))
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in create_app(server.service).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert told == served - {("/openapi.json", "get")}


def test_every_reference_leads_somewhere(document: Any) -> None:
    schemas = document["components"]["schemas"]
    found: set[str] = set()

    def walk(value: Any) -> None:
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if key == "$ref":
                found.add(one)
            elif isinstance(one, dict | list):
                walk(one)

    walk(document)
    assert found
    assert found <= {f"#/components/schemas/{name}" for name in schemas}


def test_fields_have_their_ranges(document: Any) -> None:
    fields = document["components"]["schemas"]["CompletionFields"]["properties"]
    number, null = fields["temperature"]["anyOf"]
    assert (number["minimum"], number["maximum"], null) == (0, 2, {"type": "null"})
    assert fields["top_p"]["anyOf"][0]["exclusiveMinimum"] == 0
    assert fields["echo"]["enum"] == [False, None]
    assert "store" in fields


def body_of(form: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return required fields and some others, most of them as usual and a few of them junk."""
    optional = sorted(form["properties"])
    most = min(4, len(optional))
    names = [*form.get("required", ()), *chance.sample(optional, chance.randint(0, most))]
    body = {
        name: chance.choice(USUAL[name] if name in USUAL and chance.random() < 0.8 else JUNK)
        for name in names
    }
    if chance.random() < 0.1:
        body["unheard_of"] = 1
    return body


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/completions", "CompletionFields"),
        ("/v1/chat/completions", "ChatFields"),
        ("/v1/embeddings", "EmbeddingFields"),
        ("/v1/score", "ScoreFields"),
        ("/pooling", "PoolingFields"),
        ("/tokenize", "TokenizeFields"),
        ("/detokenize", "DetokenizeFields"),
    ],
)
def test_no_body_is_a_fault_of_the_server(server, document: Any, path: str, form: str) -> None:
    chance, statuses = random.Random(path), set[int]()
    for _ in range(150):
        body = body_of(document["components"]["schemas"][form], chance)
        response = server.http.post(path, json=body)
        statuses.add(response.status_code)
        assert response.status_code in (200, 400, 404, 429), (body, response.text)
        if response.status_code != 200:
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert {200, 400} <= statuses
    assert server.alive()
