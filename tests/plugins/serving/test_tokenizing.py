"""/tokenize and /detokenize on a tokenizer whose tokens are bytes."""

from __future__ import annotations

from typing import Any

import pytest


def tokenize(server: Any, **body: Any) -> Any:
    return server.http.post("/tokenize", json=body)


def detokenize(server: Any, **body: Any) -> Any:
    return server.http.post("/detokenize", json=body)


def test_a_text_is_read_as_completions_read_it(server) -> None:
    answer = tokenize(server, model="toy", prompt="hé<|im_end|>").json()
    assert answer == {"tokens": [104, 195, 169, 258], "count": 4, "max_model_len": 256}


def test_a_conversation_is_read_as_chats_read_it(server) -> None:
    messages = [{"role": "user", "content": "Hi<|im_end|>"}]
    for flags in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        ids = tokenize(server, messages=messages, **flags).json()["tokens"]
        server.chat(messages=messages, max_tokens=1, **flags)
        assert server.engine.submitted[-1].prompt_ids == ids


def test_ids_become_text_again_control_tokens_included(server) -> None:
    assert detokenize(server, tokens=[104, 195, 169, 258]).json() == {"prompt": "hé<|im_end|>"}
    assert detokenize(server, tokens=[]).json() == {"prompt": ""}
    assert len(detokenize(server, tokens=[97] * 6000).json()["prompt"]) == 6000


BAD = [
    ("tokenize", {}, "prompt"),
    ("tokenize", {"prompt": "a", "messages": []}, "prompt"),
    ("tokenize", {"prompt": 5}, "prompt"),
    ("tokenize", {"prompt": ""}, "prompt"),
    ("tokenize", {"prompt": "a" * 300}, "prompt"),
    ("tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
    ("tokenize", {"messages": [{"role": "nobody"}]}, "messages"),
    ("tokenize", {"messages": [], "add_special_tokens": False}, "add_special_tokens"),
    ("tokenize", {"prompt": "a", "promt": "b"}, "promt"),
    ("detokenize", {}, "tokens"),
    ("detokenize", {"tokens": [259]}, "tokens"),
    ("detokenize", {"tokens": [-1]}, "tokens"),
    ("detokenize", {"tokens": [True]}, "tokens"),
    ("detokenize", {"tokens": "ab"}, "tokens"),
]


@pytest.mark.parametrize(("endpoint", "body", "param"), BAD)
def test_what_means_nothing_is_refused_by_name(
    server, endpoint: str, body: Any, param: str
) -> None:
    response = server.http.post(f"/{endpoint}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_another_model_is_not_found(server) -> None:
    assert tokenize(server, model="other", prompt="a").status_code == 404
    assert detokenize(server, model="other", tokens=[1]).status_code == 404
