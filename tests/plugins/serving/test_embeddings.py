"""Vectors of texts over HTTP, on toy models with random weights."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import openai
import pytest

from camshaft.testing.toy import LLAMA

BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 48,
    "layer_norm_eps": 1e-12,
}
ENCODER: dict[str, Any] = {
    "model": {"config": BERT, "dtype": "float32", "name": "toy"},
    "cache": {"prefix": False},
    "scheduler": {"chunk_tokens": "off"},
}


@pytest.fixture(params=["decoder", "encoder"])
def toy(serve_toy, request: pytest.FixtureRequest) -> Any:
    return serve_toy(ENCODER if request.param == "encoder" else {})


def embed(server: Any, texts: Any, **body: Any) -> Any:
    response = server.http.post("/v1/embeddings", json={"input": texts, **body})
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer: Any) -> Any:
    assert [one["index"] for one in answer["data"]] == [*range(len(answer["data"]))]
    return [one["embedding"] for one in answer["data"]]


def test_API_04_the_official_client_gets_floats_from_base64(toy) -> None:
    client = openai.OpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0)
    default = client.embeddings.create(model="toy", input=["a", "b", "a"])
    plain = client.embeddings.create(model="toy", input=["a", "b", "a"], encoding_format="float")
    found = [one.embedding for one in default.data]
    assert found == [one.embedding for one in plain.data]
    assert [one.index for one in default.data] == [0, 1, 2]
    assert found[0] == found[2] != found[1]
    assert all(math.hypot(*one) == pytest.approx(1, abs=1e-6) for one in found)
    assert default.usage.prompt_tokens == default.usage.total_tokens == 3


def test_API_04_base64_is_of_little_endian_float32(toy) -> None:
    numbers = vectors(embed(toy, "abc"))[0]
    [text] = vectors(embed(toy, "abc", encoding_format="base64"))
    assert len(numbers) == LLAMA["hidden_size"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == numbers


def test_API_04_a_batch_is_as_each_alone_and_ids_are_as_their_text(toy) -> None:
    texts = ["a", "the quick brown fox", "zz", "b" * 40]
    together = vectors(embed(toy, texts))
    for text, vector in zip(texts, together, strict=True):
        assert vectors(embed(toy, text))[0] == pytest.approx(vector, abs=1e-5)
    assert vectors(embed(toy, [list(text.encode()) for text in texts])) == together
    assert vectors(embed(toy, list(b"zz"))) == [together[2]]


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("encoding_format", {"encoding_format": "hex"}),
        ("input", {"input": ""}),
        ("input", {"input": []}),
        ("input", {"input": ["a", ""]}),
        ("input", {"input": [320]}),
        ("input", {"input": ["a"] * 2049}),
        ("dimensions", {"dimensions": 8}),
        ("pooling", {"pooling": "max"}),
        ("normalise", {"normalise": True}),
    ],
    ids=lambda one: str(one)[:40],
)
def test_API_04_what_is_not_done_is_refused_by_name(serve_toy, field: str, body: Any) -> None:
    server = serve_toy({})
    refused = server.http.post("/v1/embeddings", json={"input": "a", **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_API_04_an_encoder_answers_no_prompt(serve_toy) -> None:
    server = serve_toy(ENCODER)
    for refused in (server.complete("a"), server.chat("a"), server.complete("a", stream=True)):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        assert "generates none" in refused.json()["error"]["message"]
    assert server.http.get("/info").json()["generates"] is False


def test_poolings_differ_and_are_not_normalised_if_so_wanted(serve_toy) -> None:
    server = serve_toy({})
    kinds = {
        kind: vectors(embed(server, "abc", pooling=kind, normalize=False))[0]
        for kind in ("mean", "last", "cls")
    }
    assert kinds["cls"] != kinds["last"] != kinds["mean"]
    assert vectors(embed(server, "abc", normalize=False))[0] == kinds["last"]
    raw = server.http.post("/pooling", json={"input": "abc"}).json()["data"]
    assert raw == [{"index": 0, "data": kinds["last"], "object": "pooling"}]
    length = math.hypot(*kinds["last"])
    assert vectors(embed(server, "abc"))[0] == pytest.approx([x / length for x in kinds["last"]])


def test_a_text_may_be_as_long_as_the_context_and_no_longer(serve_toy) -> None:
    server = serve_toy(ENCODER)
    assert embed(server, [[1] * 48])["usage"]["prompt_tokens"] == 48
    refused = server.http.post("/v1/embeddings", json={"input": [[1] * 49]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )


def test_more_texts_than_the_queue_holds_are_made_in_turns(serve_toy) -> None:
    server = serve_toy({"server": {"max_queue": 2}, "scheduler": {"max_running": 3}})
    assert len(vectors(embed(server, [[one] for one in range(40)]))) == 40
    assert server.snapshot().counters["output_tokens"] == 0


def test_scores_are_cosines(toy) -> None:
    one, two, three = (np.array(x) for x in vectors(embed(toy, ["one", "two", "three"])))

    def scores(**body: Any) -> list[float]:
        answer = toy.http.post("/v1/score", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["total_tokens"] > 0
        return [pair["score"] for pair in answer.json()["data"]]

    wanted = pytest.approx([one @ two, one @ three], abs=1e-5)
    assert scores(text_1="one", text_2=["two", "three"]) == wanted
    assert scores(query="one", documents=["two", "three"]) == wanted
    assert scores(text_1=["one", "two"], text_2=["one", "three"]) == pytest.approx(
        [1, two @ three], abs=1e-5
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text_2": "a"},
        {"text_1": ["a", "b"], "text_2": ["c"]},
        {"text_1": "a", "text_2": []},
        {"text_1": "a", "text_2": "b", "query": "c"},
    ],
    ids=str,
)
def test_texts_that_make_no_pairs_are_refused(server, body: Any) -> None:
    refused = server.http.post("/v1/score", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text_1")
