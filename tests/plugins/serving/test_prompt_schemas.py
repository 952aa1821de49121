"""The endpoints of prompt schemas, on a real engine with random weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest

from camshaft.client import LocalClient, build_engine, load_text_of
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.components import PromptSchemasSettings
from camshaft.plugins.serving.prompt_schemas import PromptSchemas
from camshaft.plugins.serving.service import Service
from camshaft.testing.route import RouteContract
from camshaft.testing.toy import toy_recipe

TRIP: list[dict[str, Any]] = [
    {"name": "task", "text": "Plan a trip. Be brief."},
    {"union": [{"name": "rome", "text": "Rome has ruins."}, {"name": "oslo", "text": "Oslo " * 5}]},
    {"name": "food", "text": "Mind the allergies of all who travel."},
]
PATH = "/v1/prompt_schemas"


class TestContract(RouteContract):
    requests: ClassVar = [("POST", PATH), ("GET", PATH), ("POST", f"{PATH}/trip/completions")]
    body: ClassVar = {"name": "trip", "modules": TRIP}

    def make(self) -> PromptSchemas:
        return PromptSchemas(PromptSchemasSettings())


class Server:
    """An application, asked without a socket."""

    def __init__(self, cache: str = "modular", **settings: Any) -> None:
        recipe = toy_recipe(changes={"cache": {"use": cache, "page_tokens": 16}})
        self.client = LocalClient(lambda: build_engine(recipe))
        self.client.wait_ready()
        service = Service(self.client, recipe.server, max_running=8)
        service.start(load_text_of(recipe))
        self.app = create_app(service, [PromptSchemas(PromptSchemasSettings(**settings))])

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                return await http.request(method, path, json=body)

        return asyncio.run(send())

    def register(self, name: str = "trip", modules: Any = TRIP) -> httpx.Response:
        return self.ask("POST", PATH, {"name": name, "modules": modules})

    def complete(self, modules: Any, prompt: Any = "Where to?", **body: Any) -> httpx.Response:
        asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body = {**asked, "prompt": prompt, "modules": modules, **body}
        return self.ask("POST", f"{PATH}/{body.pop('schema', 'trip')}/completions", body)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(most_schemas=2)
    assert found.register().status_code == 200
    yield found
    found.client.close()


def test_modules_fill_pages_one_behind_the_other(server: Server) -> None:
    assert server.register().json() == {
        "id": "trip",
        "object": "prompt_schema",
        "modules": [
            {"name": "task", "position": 0, "tokens": 32},
            {"name": "rome", "position": 32, "tokens": 16},
            {"name": "oslo", "position": 32, "tokens": 32},
            {"name": "food", "position": 64, "tokens": 48},
        ],
    }
    assert [one["id"] for one in server.ask("GET", PATH).json()["data"]] == ["trip"]


def test_a_module_is_computed_once_whatever_stands_around_it(server: Server) -> None:
    counts = []
    for modules in (["food"], ["food", "task"], ["task", "rome", "food"], ["food"]):
        answer = server.complete(modules, "Yes.", cache_salt="counts")
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        counts.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    assert counts == [(52, 0), (84, 48), (100, 80), (52, 48)]


def test_the_first_module_alone_is_a_prefix_like_any_other(server: Server) -> None:
    text = str(TRIP[0]["text"])
    padded = text + "\n" * (32 - len(text))
    plain = server.ask(
        "POST",
        "/v1/completions",
        {
            "prompt": padded + "Where to?", "max_tokens": 8, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True,
        },
    )  # fmt: skip
    modular = server.complete(["task"])
    assert modular.json()["choices"][0] == plain.json()["choices"][0]
    assert modular.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_answers_depend_on_the_modules(server: Server) -> None:
    chosen = (["task"], ["food"], ["rome"], ["oslo"], ["task", "food"])
    answers = [server.complete(one).json()["choices"][0]["token_ids"] for one in chosen]
    assert len({tuple(one) for one in answers}) == 5


def test_answers_are_streamed(server: Server) -> None:
    whole = server.complete(["food", "rome"]).json()["choices"][0]["token_ids"]
    lines = server.complete(["food", "rome"], stream=True).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(one.removeprefix("data: ")) for one in lines[:-2]]
    assert [id for chunk in chunks for id in chunk["choices"][0]["token_ids"]] == whole


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (["tusk"], "schema 'trip' has no module 'tusk'; did you mean 'task'?"),
        (["oslo", "rome"], "'rome' and 'oslo' are of one union: only one can be used"),
        (["task", "task"], "modules names one twice"),
        ([], "modules names none"),
        ("task", "modules should be a valid list"),
    ],
)
def test_choices_that_cannot_be_are_refused(server: Server, modules: Any, says: str) -> None:
    response = server.complete(modules)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "modules")
    assert says in error["message"]


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ([], "must be a list of modules"),
        ([{"name": "a"}], "neither {name, text}, both texts, nor {union: [...]}"),
        ([{"name": "a", "text": ""}], "neither {name, text}, both texts, nor {union: [...]}"),
        ([{"name": "a", "text": "b"}, {"name": "a", "text": "c"}], "two modules called 'a'"),
        ([{"union": []}], "a union that is not a list of modules"),
        ([{"name": "a", "text": "b", "params": {}}], "'params' of a module is not supported"),
        ([{"name": "a", "text": "b" * 9000}], "too many"),
    ],
)
def test_schemas_that_cannot_be_are_refused(server: Server, modules: Any, says: str) -> None:
    response = server.register("other", modules)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "modules")
    assert says in error["message"]


def test_schemas_are_few_and_can_be_removed(server: Server) -> None:
    other = [{"name": "a", "text": "b"}]
    assert server.register("second", other).status_code == 200
    assert server.register("third", other).json()["error"]["code"] == "too_many_schemas"
    assert server.ask("DELETE", f"{PATH}/second").json()["deleted"] is True
    assert server.ask("DELETE", f"{PATH}/second").status_code == 404
    assert server.complete(["a"], schema="second").json()["error"]["code"] == "schema_not_found"


def test_a_prompt_that_ends_beyond_the_model_is_refused(server: Server) -> None:
    response = server.complete(["food"], "x" * 450)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "ends at position 562; this model has 512 positions" in error["message"]


def test_a_pad_that_is_no_token_is_refused() -> None:
    server = Server(pad="two")
    response = server.register()
    server.client.close()
    assert "the pad 'two' of 'prompt_schemas' has 3 tokens" in response.json()["error"]["message"]


def test_a_server_whose_cache_composes_nothing_says_so() -> None:
    server = Server(cache="paged")
    server.register()
    refused, prefix = server.complete(["food"]), server.complete(["task"])
    server.client.close()
    assert "'modular' over it does" in refused.json()["error"]["message"]
    assert (refused.status_code, prefix.status_code) == (400, 200)
