"""Beam search over HTTP: what is answered, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

BEAMS = {"use_beam_search": True, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture
def toy(serve_toy) -> Any:
    return serve_toy({})


def test_completions_and_chats_are_searched_for(toy) -> None:
    body = toy.complete(["Hello", "Bye"], n=3, **BEAMS).json()
    assert [one["index"] for one in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert len({tuple(one["token_ids"]) for one in body["choices"][:3]}) == 3
    assert body["usage"]["completion_tokens"] == 36
    chat = toy.chat("Hello", n=2, **BEAMS).json()
    assert [len(one["token_ids"]) for one in chat["choices"]] == [6, 6]


def test_best_of_is_the_width_where_fewer_are_told(toy) -> None:
    every = toy.complete(n=4, logprobs=2, **BEAMS).json()["choices"]
    best = toy.complete(n=1, best_of=4, logprobs=2, **BEAMS).json()["choices"]
    assert best == every[:1]
    sums = [sum(one["logprobs"]["token_logprobs"]) for one in every]
    assert sums == sorted(sums, reverse=True)


def test_one_beam_is_the_greedy_answer(toy) -> None:
    greedy = {**BEAMS, "temperature": 0}
    greedy.pop("use_beam_search")
    one = toy.complete(n=1, **BEAMS).json()["choices"]
    assert one == toy.complete(**greedy).json()["choices"]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("stream", {"stream": True}),
    ("seed", {"seed": 3}),
    ("temperature", {"temperature": 0.7}),
    ("top_p", {"top_p": 0.9}),
    ("stop", {"stop": "a"}),
    ("echo", {"echo": True}),
    ("n", {"n": 9}),
    ("n", {"best_of": 9}),
    ("length_penalty", {"length_penalty": 11.0}),
    ("early_stopping", {"early_stopping": "soon"}),
    ("length_penalty", {"use_beam_search": False, "length_penalty": 1.0}),
]


def test_what_a_search_cannot_do_is_refused_by_name(toy) -> None:
    for param, body in REFUSED:
        refused = toy.complete(**{"n": 2, **BEAMS, **body})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
