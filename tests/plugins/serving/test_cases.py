"""Cases of public bug reports that take the whole way, on toy models with random weights."""

from __future__ import annotations

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from camshaft.testing.toy import pool

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def toy(serve_toy) -> Any:
    return serve_toy({"cache": {"page_tokens": 16, "memory": pool(64, page_tokens=16)}})


def strict(response: httpx.Response) -> Any:
    """Parse a body as JSON without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"the body holds {name}")

    assert response.status_code == 200, response.text
    return json.loads(response.text, parse_constant=refuse)


def test_TOK_05_an_id_beyond_the_tokenizer_is_no_text_and_harms_nobody(toy, events) -> None:
    body = {"prompt": "a", "max_tokens": 4, "logit_bias": {"310": 100}, "logprobs": 3, **GREEDY}
    answer = strict(toy.complete(**body, return_token_ids=True))
    [choice] = answer["choices"]
    assert (choice["token_ids"], choice["text"]) == ([310] * 4, "")
    assert len(choice["logprobs"]["token_logprobs"]) == 4
    chunks = events(toy.complete(**body, stream=True))
    assert [one["choices"][0]["finish_reason"] for one in chunks][-1] == "length"
    plain = toy.complete("a", max_tokens=4, **GREEDY)
    assert plain.json()["usage"]["completion_tokens"] == 4


BAD = [
    ("temperature", -1), ("top_p", 0), ("n", 10**6), ("max_tokens", 1e9),
    ("logit_bias", {"320": 5}), ("logit_bias", {"5": 1e9}), ("stop", [""]),
    ("stop_token_ids", [320]), ("logprobs", -1),
    ("presence_penalty", 3), ("prompt", [320]), ("prompt", []), ("echo", "yes"), ("best_of", 0),
]  # fmt: skip


def test_SMP_02_what_is_refused_beside_a_stream_does_not_touch_it(toy, events) -> None:
    body = {"prompt": "canary", "max_tokens": 100, "return_token_ids": True, **GREEDY}
    alone = strict(toy.complete(**body))["choices"][0]["token_ids"]
    with ThreadPoolExecutor(1) as other:
        canary = other.submit(toy.complete, stream=True, **body)
        for name, value in BAD:
            refused = toy.complete(**{"prompt": "x", "max_tokens": 1, name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        chunks = events(canary.result())
    assert [id for one in chunks for id in one["choices"][0]["token_ids"]] == alone


def echoed(server: Any, prompt: Any, **body: Any) -> Any:
    [choice] = strict(server.complete(prompt, echo=True, **body))["choices"]
    return choice


def test_SMP_10_an_echoed_prompt_has_its_own_logprobs_and_nothing_behind_it(toy) -> None:
    prompt = "Your answer: Yes"
    answer = strict(toy.complete(prompt, echo=True, logprobs=1, max_tokens=0))
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] == 16
    reported = choice["logprobs"]
    assert reported["tokens"] == list(prompt)
    assert reported["text_offset"] == list(range(16))
    first, *others = reported["token_logprobs"]
    assert first is None
    assert reported["top_logprobs"][0] is None
    assert all(-20 < one < 0 for one in others)
    assert all(len(one) in (1, 2) for one in reported["top_logprobs"][1:])


def test_SMP_10_sampling_parameters_do_not_change_a_prompt_s_logprobs(toy) -> None:
    alone = echoed(toy, "Your answer: Yes", logprobs=1, max_tokens=0)["logprobs"]
    drawn = echoed(toy, "Your answer: Yes", logprobs=1, max_tokens=1, temperature=1, top_k=1)
    assert drawn["logprobs"]["token_logprobs"][:16] == alone["token_logprobs"]
    assert len(drawn["logprobs"]["token_logprobs"]) == 17
    assert drawn["logprobs"]["text_offset"][16] == 16
    assert drawn["text"].startswith("Your answer: Yes")


def test_SMP_10_a_streamed_echo_is_the_same(toy, events) -> None:
    body = {"logprobs": 2, "max_tokens": 5, "n": 2, "echo": True, **GREEDY}
    whole = strict(toy.complete(["abc", "é!"], **body))["choices"]
    parts = [one["choices"][0] for one in events(toy.complete(["abc", "é!"], stream=True, **body))]
    for choice in whole:
        own = [one for one in parts if one["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in own for value in one["logprobs"][name]] == values
    assert [one["text"][:2] for one in whole] == ["ab", "ab", "é!", "é!"]
    assert whole[2]["logprobs"]["text_offset"][:4] == [0, 0, 1, 2]


X = list(range(100, 133))
Y = [*X[:32], *range(200, 217)]


@pytest.mark.parametrize("order", [(X, Y, X), (Y, X, Y)], ids=["X, Y, X", "Y, X, Y"])
def test_PFX_02_logprobs_of_a_cached_prompt_are_complete_and_its_own(
    toy, serve_toy, order: Any
) -> None:
    uncached = serve_toy({"cache": {"prefix": False}})
    body = {"logprobs": 3, "max_tokens": 1, **GREEDY}
    toy.complete(order[0], max_tokens=1)
    for prompt in order:
        found, plain = (echoed(one, prompt, **body)["logprobs"] for one in (toy, uncached))
        for reported in (found, plain):
            assert len(reported["token_logprobs"]) == len(prompt) + 1
            assert reported["token_logprobs"][0] is None
            assert all(value < 0 for value in reported["token_logprobs"][1:])
        assert found["token_logprobs"][1:] == pytest.approx(plain["token_logprobs"][1:], abs=1e-4)
        assert [set(one) for one in found["top_logprobs"][1:]] == [
            set(one) for one in plain["top_logprobs"][1:]
        ]
    again = strict(toy.complete(order[0], max_tokens=1, echo=True))
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


CHOOSY = [{"top_p": 0.01}, {"temperature": 0.01}, {"allowed_token_ids": [65, 66]}, {"top_k": 1}]


@pytest.mark.parametrize("params", CHOOSY, ids=str)
def test_SMP_11_logprobs_of_tokens_that_could_not_be_chosen_are_json(
    toy, events, params: dict[str, Any]
) -> None:
    body = {"logprobs": True, "top_logprobs": 5, "max_tokens": 4, "seed": 3, "ignore_eos": True}
    whole = strict(toy.chat(**body, **params))["choices"][0]["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in whole] == [5] * 4
    chunks = events(toy.chat(**body, **params, stream=True))
    choices = [one for chunk in chunks for one in chunk["choices"] if one["logprobs"]]
    assert [entry for one in choices for entry in one["logprobs"]["content"]] == whole
    for top in (0, None):
        short = strict(toy.chat(**{**body, "top_logprobs": top}, **params))
        content = short["choices"][0]["logprobs"]["content"]
        assert [one["top_logprobs"] for one in content] == [[]] * 4
        assert [one["logprob"] for one in content] == [one["logprob"] for one in whole]


def test_SMP_11_no_alternatives_leave_the_chosen_token_s_own(toy) -> None:
    choice = strict(toy.complete("a", logprobs=0, max_tokens=2, **GREEDY))["choices"][0]
    reported = choice["logprobs"]
    assert [len(one) for one in reported["top_logprobs"]] == [1, 1]
    values = [value for one in reported["top_logprobs"] for value in one.values()]
    assert values == reported["token_logprobs"]


def test_SMP_12_logprobs_are_the_model_s_own_whatever_is_asked_for(toy) -> None:
    def top(**params: Any) -> Any:
        body = {"prompt": "The capital", "max_tokens": 1, "logprobs": 5, "seed": 5, **params}
        reported = strict(toy.complete(**body))["choices"][0]["logprobs"]
        # the chosen token comes after the five
        return dict(list(reported["top_logprobs"][0].items())[:5])

    plain = top(temperature=0)
    assert len(plain) == 5
    for params in (
        {"temperature": 0.3},
        {"temperature": 1.5, "top_p": 0.1},
        {"temperature": 1, "logit_bias": {"70": 5}},
        {"temperature": 0, "presence_penalty": 2},
    ):
        assert top(**params) == plain


def test_CHT_03_a_prefilled_answer_is_the_same_from_the_cache(toy) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure"}]
    body = {"messages": messages, "max_tokens": 16, "continue_final_message": True, **GREEDY}
    first, second = (strict(toy.chat(**body)) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    both = toy.chat(**body, add_generation_prompt=True)
    assert both.status_code == 400


TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ],
)
def test_API_02_tools_are_refused_by_name_streamed_or_not(toy, body: Any, param: str) -> None:
    for stream in (False, True):
        error = toy.chat(**body, stream=stream).json()["error"]
        assert (error["param"], error["code"]) == (param, "unsupported")


def test_API_02_a_choice_of_no_tool_asks_for_nothing(toy) -> None:
    for choice in ("none", "auto"):
        answer = strict(toy.chat(tool_choice=choice, tools=[], max_tokens=2))
        assert answer["choices"][0]["finish_reason"] != "tool_calls"


def test_SRV_06_huge_prompts_hold_no_stream_up(serve) -> None:
    server = serve(room=2000, step_s=0.02)
    gaps: list[float] = []

    def watch() -> None:
        body = {"prompt": "x", "max_tokens": 150, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as one:
            last = time.monotonic()
            for _ in one.iter_raw():
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

    with ThreadPoolExecutor(5) as many:
        watching = many.submit(watch)
        huge = [many.submit(server.complete, "word " * 10**6) for _ in range(3)]
        word = many.submit(server.complete, "w" * 10**6)
        chat = server.chat("long " * 8000)
        began = time.monotonic()
        assert server.http.get("/health").status_code == 200
        health_s = time.monotonic() - began
        watching.result()
    codes = {one.result().json()["error"]["code"] for one in (*huge, word)}
    assert codes == {chat.json()["error"]["code"]} == {"context_length_exceeded"}
    assert max(gaps) < 1
    assert health_s < 1


def mixed(server: Any, count: int) -> None:
    """Ask for all kinds of things, some of which are refused and some left before the end."""

    def ask(number: int) -> None:
        match number % 6:
            case 0:
                server.complete(f"{number} plain", max_tokens=2)
            case 1:
                server.complete(f"{number} stream", max_tokens=3, stream=True, logprobs=2)
            case 2:
                server.complete("refused", temperature=9)
            case 3:
                server.chat(f"{number}", n=2, max_tokens=2, seed=number)
            case 4:
                server.complete("x", max_tokens=4, stop=[f"{number}"], bad_words=[f"w{number}"])
            case _:
                body = {"prompt": f"{number}", "max_tokens": 400, "stream": True, **GREEDY}
                with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as one:
                    next(one.iter_raw())

    with ThreadPoolExecutor(4) as many:
        list(many.map(ask, range(count)))


@pytest.mark.slow
def test_MEM_01_requests_leave_nothing_behind(toy, until) -> None:
    def held() -> tuple[int, int, int]:
        until(lambda: not toy.client.open_requests)
        until(lambda: toy.snapshot().running == 0)
        for _ in range(3):
            gc.collect()
        return len(gc.get_objects()), psutil.Process().num_fds(), threading.active_count()

    mixed(toy, 90)
    objects, files, threads = held()
    mixed(toy, 180)
    after, files_after, threads_after = held()
    assert after - objects < 180  # less than one for each request
    assert files_after <= files + 2
    assert threads_after <= threads + 1
    assert not toy.service.open_calls
    usage = toy.snapshot().pools[0]
    assert (usage.in_use, usage.pinned) == (0, 0)
    assert usage.free + usage.evictable == usage.total


def test_the_best_of_several_answers_are_told_and_all_are_counted(toy) -> None:
    body = {"prompt": ["Hello", "Bye"], "max_tokens": 8, "seed": 3, "ignore_eos": True}
    every = strict(toy.complete(**body, n=4, logprobs=0))
    best = strict(toy.complete(**body, n=2, best_of=4))
    assert best["usage"] == {**every["usage"], "prompt_tokens_details": {"cached_tokens": 0}}
    for prompt in (0, 1):
        made = every["choices"][4 * prompt : 4 * prompt + 4]
        made.sort(key=lambda one: -sum(one["logprobs"]["token_logprobs"]))
        told = best["choices"][2 * prompt : 2 * prompt + 2]
        assert [one["text"] for one in told] == [one["text"] for one in made[:2]]
        assert [one["index"] for one in told] == [2 * prompt, 2 * prompt + 1]
        assert [one["logprobs"] for one in told] == [None, None]


@pytest.mark.parametrize(
    "wrong", [{"best_of": 1}, {"best_of": 3, "stream": True}, {"best_of": 999}]
)
def test_fewer_candidates_than_answers_and_streams_of_the_best_are_refused(toy, wrong: Any) -> None:
    refused = toy.complete("a", n=2, max_tokens=1, **wrong)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "best_of")
