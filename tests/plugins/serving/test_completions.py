"""/v1/completions on a scripted engine."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


def test_an_answer_has_openai_s_form(server) -> None:
    body = server.complete("echo Hi", max_tokens=8).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == ("Hi", "stop", 0)
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "toy", "cmpl-")
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert "token_ids" not in choice


def test_sixteen_tokens_are_the_default(server) -> None:
    assert server.complete("a").json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("echo a", ["a"]),
        (["echo a", "echo b"], ["a", "b"]),
        (list(b"echo a"), ["a"]),
        ([list(b"echo a"), list(b"echo b")], ["a", "b"]),
    ],
)
def test_a_prompt_has_four_forms(server, prompt: Any, texts: list[str]) -> None:
    assert [one["text"] for one in server.complete(prompt).json()["choices"]] == texts


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [""], [259], [-1], [5279552648203111001], [1.5], [True], [65, "a"], None,
     ["ok", ""], [[65], [259]]],
)  # fmt: skip
def test_TOK_02_bad_prompts_are_refused_and_harm_nobody(server, prompt: Any) -> None:
    response = server.complete(prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert server.alive()


def test_TOK_02_a_missing_prompt_is_refused_and_the_last_id_is_not(server) -> None:
    response = server.http.post("/v1/completions", json={"max_tokens": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert server.complete([258], max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_TOK_04_a_prompt_beyond_the_context_is_refused_before_any_event(
    server, stream: bool
) -> None:
    for response in (
        server.complete([65] * 300, stream=stream),
        server.chat("word " * 20_000, stream=stream),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "256" in error["message"]
    assert "300" in server.complete([65] * 300, stream=stream).json()["error"]["message"]


def test_TOK_04_an_answer_that_would_pass_the_context_ends_there(server) -> None:
    for response in (
        server.complete([65] * 200, max_tokens=100),
        server.http.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "x" * 181}], "max_tokens": 100},
        ),
    ):
        body = response.json()
        assert body["usage"]["prompt_tokens"] == 200
        assert body["usage"]["completion_tokens"] == 56
        assert body["choices"][0]["finish_reason"] == "length"


def test_SMP_03_min_tokens_holds_the_end_back(server) -> None:
    for least in (0, 1, 4):
        body = server.complete(
            "Hello",
            temperature=0,
            logit_bias={"258": 100},
            max_tokens=32,
            min_tokens=least,
            return_token_ids=True,
        ).json()
        ids = body["choices"][0]["token_ids"]
        assert (len(ids), ids[-1]) == (least + 1, 258)
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == least + 1


def test_SMP_03_ignore_eos_leaves_the_user_s_own_stop_ids(server) -> None:
    forced = {"logit_bias": {"258": 100}, "ignore_eos": True, "max_tokens": 6}
    ignored = server.complete("Hello", **forced).json()
    assert ignored["usage"]["completion_tokens"] == 6
    assert ignored["choices"][0]["finish_reason"] == "length"
    stopped = server.complete("Hello", stop_token_ids=[258], **forced).json()
    assert stopped["usage"]["completion_tokens"] == 1
    assert stopped["choices"][0]["stop_reason"] == 258


@pytest.mark.parametrize("stream", [False, True])
def test_SMP_09_n_answers_come_back_complete(server, events, joined, stream: bool) -> None:
    for _ in range(10):
        response = server.complete("Hello", n=8, seed=3, max_tokens=17, stream=stream)
        if stream:
            chunks = events(response)
            texts = [joined(chunks, index) for index in range(8)]
            reasons = [one["finish_reason"] for c in chunks for one in c["choices"]]
            assert [one for one in reasons if one] == ["length"] * 8
        else:
            choices = response.json()["choices"]
            assert [one["index"] for one in choices] == list(range(8))
            assert response.json()["usage"]["completion_tokens"] == 8 * 17
            texts = [one["text"] for one in choices]
        assert {len(text) for text in texts} == {17}
        assert len(set(texts)) >= 2


def test_SMP_09_prompt_i_and_sample_j_have_index_i_n_plus_j(server) -> None:
    body = server.complete(["echo a", "echo bb", "echo ccc"], n=2, temperature=0).json()
    texts = [one["text"] for one in body["choices"]]
    assert texts == ["a", "a", "bb", "bb", "ccc", "ccc"]
    assert body["usage"]["prompt_tokens"] == 6 + 7 + 8
    assert body["usage"]["completion_tokens"] == 2 * (2 + 3 + 4)


def test_SMP_08_seeded_and_greedy_answers_do_not_depend_on_company(server) -> None:
    asked = [
        {"prompt": f"prompt {i}" * (i + 1), "max_tokens": 20, "temperature": i % 2, "seed": i}
        for i in range(16)
    ]
    solo = [server.complete(**one).json()["choices"][0]["text"] for one in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda one: server.complete(**one).json(), asked))
    assert [one["choices"][0]["text"] for one in together] == solo


def test_logprobs_have_the_form_of_completions(server) -> None:
    body = server.complete("echo ab", logprobs=2).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["top_logprobs"][0] == {"a": -0.5, "b": -1.5}


def test_tokens_that_are_no_text_have_names_of_their_own(server) -> None:
    body = server.complete("echo é", logprobs=0).json()
    assert body["choices"][0]["logprobs"]["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_joined_stream_logprobs_and_ids_equal_the_whole_answer(server, events) -> None:
    asked = {"prompt": "echo día", "logprobs": 2, "return_token_ids": True, "temperature": 0}
    whole = server.complete(**asked).json()["choices"][0]
    chunks = [chunk["choices"][0] for chunk in events(server.complete(**asked, stream=True))]
    assert "".join(one["text"] for one in chunks) == whole["text"] == "día"
    assert [id for one in chunks for id in one["token_ids"]] == whole["token_ids"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [x for one in chunks for x in one["logprobs"][name]] == whole["logprobs"][name]


def test_PFX_01_cached_tokens_are_told(server) -> None:
    for length in (1, 15, 16, 17, 32, 48):
        prompt = [100 + length] + [101] * (length - 1)
        cold, warm = (
            server.complete(prompt, max_tokens=1).json()["usage"]["prompt_tokens_details"]
            for _ in range(2)
        )
        assert cold == {"cached_tokens": 0}
        assert warm == {"cached_tokens": 16 * ((length - 1) // 16)}


def test_a_salt_keeps_cached_pages_apart(server) -> None:
    def cached(salt: str) -> Any:
        body = server.complete([77] * 40, max_tokens=1, cache_salt=salt).json()
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(salt) for salt in ("a", "a", "b", "b")] == [0, 32, 0, 32]


def test_what_is_wrong_with_a_cache_scope_is_said(server) -> None:
    def message(**cache: Any) -> Any:
        return server.complete("a", cache=cache).json()["error"]["message"]

    assert message(version=1) == "cache.namespace is missing"
    assert message(namespace="n", ttl=1) == "cache has no field 'ttl'"
    assert message(namespace="n", version="1") == "cache.version should be a valid integer"
    assert message(namespace="n", ttl_s=-3) == "cache.ttl_s must be above 0, not -3"


BAD = [
    ("temperature", -1), ("temperature", "hot"), ("temperature", 2.5), ("temperature", True),
    ("top_p", 0), ("top_p", -0.1), ("top_p", 1.5), ("min_p", 2), ("top_k", 0.01), ("top_k", -2),
    ("n", 0), ("n", -1), ("n", 10**6), ("max_tokens", -5), ("max_tokens", 0), ("max_tokens", 1e9),
    ("max_tokens", 10**9), ("max_tokens", "x"), ("presence_penalty", 3),
    ("frequency_penalty", -2.5), ("repetition_penalty", 0), ("logit_bias", {"259": 5}),
    ("logit_bias", {"-1": 5}), ("logit_bias", {"abc": 1}), ("logit_bias", {"5": 1e9}),
    ("logit_bias", [1]), ("stop", [""]), ("stop", ""), ("stop", 5), ("stop", ["a", 1]),
    ("stop_token_ids", [259]), ("stop_token_ids", ["a"]), ("logprobs", -1), ("logprobs", True),
    ("logprobs", 21), ("seed", 1.5), ("seed", 2**64), ("min_tokens", 17), ("min_tokens", -1),
    ("bad_words", [""]), ("bad_words", "x"), ("allowed_token_ids", []),
    ("allowed_token_ids", [999]), ("ignore_eos", "yes"), ("stream", 1), ("priority", 2**40),
    ("cache_salt", "s" * 300), ("request_id", "a\nb"), ("request_id", "x" * 10_000),
    ("cache", {"version": 1}), ("cache", {"namespace": ""}), ("cache", {"namespace": "n" * 300}),
    ("cache", {"namespace": 1}), ("cache", {"namespace": "n", "version": -1}),
    ("cache", {"namespace": "n", "version": 1.5}), ("cache", {"namespace": "n", "version": "2"}),
    ("cache", {"namespace": "n", "ttl_s": 0}), ("cache", {"namespace": "n", "ttl_s": -1}),
    ("cache", {"namespace": "n", "ttl_s": True}), ("cache", {"namespace": "n", "ttl": 5}),
    ("cache", "news"), ("cache", {"namespace": "n", "version": 2**63}),
    ("model", 5), ("stream_options", {"include_usage": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_SMP_02_a_bad_field_is_refused_by_name(server, name: str, value: Any) -> None:
    response = server.complete("Hello", **{name: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name), error
    assert error["type"] == "invalid_request_error"
    assert name in error["message"]


def test_SMP_02_n_0_is_a_400_in_a_stream_too(server) -> None:
    assert server.complete("a", n=0, stream=True).status_code == 400


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_SMP_02_numbers_that_json_does_not_have_are_refused(server, word: str) -> None:
    content = f'{{"prompt": "a", "presence_penalty": {word}}}'
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=content, headers=headers)
    assert (response.status_code, word in response.text) == (400, True)
    huge = content.replace(word, "1e999")
    response = server.http.post("/v1/completions", content=huge, headers=headers)
    assert response.json()["error"]["param"] == "presence_penalty"


def test_SMP_02_empty_and_null_fields_count_as_absent(server) -> None:
    nothing = dict.fromkeys(("temperature", "stop", "logit_bias", "seed", "n", "user", "tools"))
    plain = server.complete("echo a").json()["choices"]
    assert server.complete("echo a", logit_bias={}, stop=[]).json()["choices"] == plain
    assert server.complete("echo a", **nothing).json()["choices"] == plain


def test_fields_without_meaning_are_accepted(server) -> None:
    response = server.complete("echo a", user="u", metadata={"a": "b"}, store=True)
    assert response.status_code == 200


def test_an_unknown_field_is_refused_with_the_nearest_name(server) -> None:
    error = server.complete("a", temprature=1).json()["error"]
    assert (error["param"], error["code"]) == ("temprature", "unknown_field")
    assert "did you mean 'temperature'?" in error["message"]


LATER = [
    ("response_format", {"type": "json_object"}), ("tools", [{}]), ("suffix", "x"),
    ("tool_choice", "required"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LATER)
def test_a_field_that_comes_later_is_refused_as_such(server, name: str, value: Any) -> None:
    error = server.complete("a", **{name: value}).json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported")


def test_such_a_field_that_asks_for_nothing_is_accepted(server) -> None:
    harmless = {"response_format": {"type": "text"}, "echo": False, "best_of": 1, "suffix": ""}
    assert server.complete("echo a", **harmless).status_code == 200


def test_SRV_05_a_request_id_names_the_answer_and_may_be_used_twice_at_once(server) -> None:
    asked = [{"prompt": f"echo {word}", "request_id": "same"} for word in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda one: server.complete(**one).json(), asked))
    assert [one["choices"][0]["text"] for one in answers] == ["one", "two"]
    assert {one["id"] for one in answers} == {"cmpl-same"}


def test_extremes_that_are_legal_reach_the_engine(server) -> None:
    response = server.complete(
        "x", temperature=1e-30, top_k=10**9, top_p=1e-9, min_p=1.0, seed=-1, max_tokens=2
    )
    assert response.status_code == 200
    params = server.engine.submitted[-1].params
    assert (params.temperature, params.top_k, params.seed) == (1e-30, 10**9, 2**64 - 1)
    assert server.complete("x", top_k=-1, max_tokens=1).status_code == 200
    assert server.engine.submitted[-1].params.top_k == 0


def test_every_field_reaches_the_engine(server) -> None:
    server.complete(
        "x",
        max_tokens=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"65": -7},
        stop="end",
        stop_token_ids=[66],
        bad_words=["no"],
        allowed_token_ids=[65, 66],
        include_stop_str_in_output=True,
        priority=-4,
        logprobs=3,
    )
    request = server.engine.submitted[-1]
    params = request.params
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert (params.repetition_penalty, params.logit_bias) == (1.5, {65: -7.0})
    assert (params.stop, params.stop_token_ids, params.include_stop) == (("end",), (66,), True)
    assert params.bad_words == ((110, 111), (32, 110, 111))
    assert (params.allowed_token_ids, params.logprobs) == ((65, 66), 3)
    assert request.priority == -4
    assert math.isclose(params.temperature, 1)
