"""The whole way from HTTP to a real engine, on toy models with random weights."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli import main
from camshaft.client import Boot, RemoteClient
from camshaft.generate.answers import Delta
from camshaft.generate.choice import ChoiceText
from camshaft.generate.llm import LLM
from camshaft.request import Request, RequestOutput, SamplingParams, TokenSpan
from camshaft.testing.toy import LLAMA, pool, toy_mapping, toy_recipe

PAGES_OF_16 = {"page_tokens": 16, "memory": pool(64, page_tokens=16)}


@pytest.fixture
def toy(serve_toy) -> Any:
    return serve_toy({"cache": PAGES_OF_16})


def ids(server: Any, **body: Any) -> list[int]:
    response = server.complete(**body, return_token_ids=True)
    assert response.status_code == 200, response.text
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


def test_SMP_01_legal_extremes_are_greedy_or_off_alone_and_together(toy) -> None:
    asked = {"prompt": "The capital of France is", "max_tokens": 20, "ignore_eos": True, "seed": 1}
    greedy = [{"temperature": t} for t in (0, 1e-4, 1e-6, 1e-30)]
    greedy += [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}]
    off = [{"top_k": k} for k in (0, -1, 320, 321, 10**9)]
    wild: list[dict[str, Any]] = [{"temperature": 2.0}, {"temperature": 1e-2}]
    alone = [ids(toy, **asked, **one) for one in greedy + off + wild]
    assert alone[: len(greedy)] == [alone[0]] * len(greedy)
    assert alone[len(greedy) : -2] == [alone[len(greedy)]] * len(off)
    assert {len(one) for one in alone} == {20}
    with ThreadPoolExecutor(14) as many:
        together = list(many.map(lambda one: ids(toy, **asked, **one), greedy + off + wild))
    assert together == alone


def test_SMP_08_neighbours_with_other_parameters_change_nothing(toy) -> None:
    chance = random.Random(8)
    asked = [
        {
            "prompt": [chance.randrange(256) for _ in range(chance.randint(3, 200))],
            "max_tokens": 12,
            "ignore_eos": True,
            "temperature": 0 if i % 2 else 0.9,
            "seed": i // 4,
            "top_p": chance.choice([1.0, 0.9]),
            "top_k": chance.choice([0, 20]),
            "frequency_penalty": chance.choice([0, 0.5]),
            "repetition_penalty": chance.choice([1.0, 1.2]),
            "logit_bias": chance.choice([{}, {"65": 3}]),
        }
        for i in range(16)
    ]
    solo = [ids(toy, **one) for one in asked]
    for _ in range(2):
        order = chance.sample(range(16), 16)
        with ThreadPoolExecutor(16) as many:
            found = list(many.map(lambda place: ids(toy, **asked[place]), order))
        assert found == [solo[place] for place in order]


def test_SMP_09_n_answers_of_a_real_engine(toy) -> None:
    body = {"prompt": ["Hello", "Bye"], "n": 4, "max_tokens": 17, "ignore_eos": True}
    first, again = (toy.complete(**body, seed=3).json() for _ in range(2))
    assert first["choices"] == again["choices"]
    assert len({one["text"] for one in first["choices"][:4]}) >= 2
    assert first["usage"]["completion_tokens"] == 8 * 17
    assert first["usage"]["prompt_tokens"] == 5 + 3


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
def test_PFX_01_a_prompt_that_is_wholly_cached_gives_the_same_answer(
    serve_toy, page_tokens: int
) -> None:
    memory = pool(1024 // page_tokens, page_tokens=page_tokens)
    cache = {"page_tokens": page_tokens, "memory": memory}
    cold = serve_toy({"cache": {**cache, "prefix": False}})
    warm = serve_toy({"cache": cache})
    for length in (1, 15, 16, 17, 32, 48, 32):
        body = {
            "prompt": list(range(100, 100 + length)),
            "max_tokens": 8,
            "temperature": 0,
            "logprobs": 5,
            "ignore_eos": True,
        }
        wanted = cold.complete(**body).json()["choices"]
        for attempt in range(3):
            answer = warm.complete(**body).json()
            assert answer["choices"] == wanted
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            if attempt:
                assert page_tokens * ((length - 1) // page_tokens) <= cached <= length - 1


def test_PFX_05_every_turn_finds_the_last_one_in_the_cache(serve_toy) -> None:
    cold = serve_toy({"cache": {**PAGES_OF_16, "prefix": False}})
    warm = serve_toy({"cache": PAGES_OF_16})
    chance = random.Random(5)
    conversation: list[int] = [chance.randrange(256) for _ in range(40)]
    known = 0
    for _ in range(6):
        body = {"prompt": conversation, "max_tokens": 20, "ignore_eos": True, "temperature": 0}
        answer = warm.complete(**body, return_token_ids=True).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= (known - 1) // 16 * 16
        assert answer["choices"][0]["token_ids"] == ids(cold, **body)
        known = len(conversation) + 20
        conversation += answer["choices"][0]["token_ids"]
        conversation += [chance.randrange(256) for _ in range(15)]


def greedy_with_stops(server: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Ask for 4 long answers; return each with a question for the same up to some characters."""
    chance = random.Random(6)
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    while len(pairs) < 4:
        body = {
            "prompt": [chance.randrange(97, 123) for _ in range(chance.randint(5, 30))],
            "max_tokens": 60,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        whole = server.complete(**body).json()["choices"][0]
        text = whole["text"]
        places = [at for at in range(4, len(text) - 30) if text.find(text[at : at + 3]) == at]
        if places:
            at = chance.choice(places)
            # so many that the engine does not end the answer before the stop string is seen
            pairs.append((whole, {**body, "stop": text[at : at + 3], "max_tokens": 400}))
    return pairs


@pytest.fixture
def slow_reader(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the engine run ahead of whoever looks for stop strings."""
    push = ChoiceText.push

    def slowly(self: ChoiceText, output: RequestOutput) -> Delta | None:
        time.sleep(0.001)
        return push(self, output)

    return lambda: monkeypatch.setattr(ChoiceText, "push", slowly)


def cached_of(answer: Any) -> int:
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


@pytest.mark.parametrize("page_tokens", [1, 4])
def test_PFX_06_what_came_after_a_stop_string_is_not_cached(
    serve_toy, slow_reader: Callable[[], None], page_tokens: int
) -> None:
    cache = {"page_tokens": page_tokens, "memory": pool(2048 // page_tokens, LLAMA, page_tokens)}
    cold = serve_toy({"cache": {**cache, "prefix": False}})
    warm = serve_toy({"cache": cache})
    pairs = greedy_with_stops(cold)
    slow_reader()
    with ThreadPoolExecutor(4) as many:
        stopped = list(many.map(lambda pair: warm.complete(**pair[1]).json(), pairs))
    for (whole, asked), answer in zip(pairs, stopped, strict=True):
        choice, returned = answer["choices"][0], answer["usage"]["completion_tokens"]
        assert (choice["finish_reason"], choice["token_ids"]) == (
            "stop", whole["token_ids"][:returned],
        )  # fmt: skip
        assert returned < 60
        known = len(asked["prompt"]) + returned
        longer = {**asked, "prompt": asked["prompt"] + whole["token_ids"], "max_tokens": 5}
        found = cached_of(warm.complete(**longer).json())
        # the last token of an answer may not have been computed
        assert (known - 1) // page_tokens * page_tokens <= found <= known
    for whole, asked in pairs:
        again = {"prompt": asked["prompt"], "max_tokens": 20, "ignore_eos": True, "temperature": 0}
        assert ids(warm, **again) == whole["token_ids"][:20]


def test_PRE_01_preempted_answers_lose_and_repeat_nothing(serve_toy, events) -> None:
    large = serve_toy({"cache": PAGES_OF_16})
    small = serve_toy({"cache": {"page_tokens": 16, "memory": pool(24, page_tokens=16)}})
    chance = random.Random(1)
    asked = [
        {
            "prompt": [chance.randrange(256) for _ in range(20)],
            "max_tokens": 64,
            "ignore_eos": True,
            **({"temperature": 0.8, "frequency_penalty": 0.5, "seed": i} if i % 2 else {}),
            **({} if i % 2 else {"temperature": 0}),
        }
        for i in range(8)
    ]

    def ask(place: int) -> list[int]:
        if place % 4 < 2:
            return ids(small, **asked[place])
        chunks = events(small.complete(**asked[place], stream=True, return_token_ids=True))
        return [id for chunk in chunks for id in chunk["choices"][0]["token_ids"]]

    wanted = [ids(large, **one) for one in asked]
    with ThreadPoolExecutor(8) as many:
        found = list(many.map(ask, range(8)))
    assert [len(one) for one in found] == [64] * 8
    assert found == wanted
    assert sum(small.snapshot().by_label["preemptions"].values()) > 0
    assert 'camshaft_kv_evicted_pages_total{reason="space"}' in small.http.get("/metrics").text


def test_SCH_01_what_the_pool_cannot_hold_is_refused_and_blocks_nobody(serve_toy) -> None:
    server = serve_toy({"cache": {"page_tokens": 16, "memory": pool(16, page_tokens=16)}})
    with ThreadPoolExecutor(3) as many:
        large = many.submit(server.complete, [65] * 400)
        small = many.submit(server.complete, [66] * 10, max_tokens=8, ignore_eos=True)
        growing = many.submit(server.complete, [67] * 200, max_tokens=200, ignore_eos=True)
    error = large.result().json()["error"]
    assert (large.result().status_code, error["code"]) == (400, "context_length_exceeded")
    assert small.result().json()["usage"]["completion_tokens"] == 8
    body = growing.result().json()
    assert body["usage"]["total_tokens"] == 256
    assert body["choices"][0]["finish_reason"] == "length"


def test_ABT_01_a_real_engine_gives_everything_back(toy, until) -> None:
    pieces = []
    for _ in range(4):
        request = toy.http.build_request(
            "POST",
            "/v1/completions",
            json={"prompt": "x" * 50, "max_tokens": 400, "ignore_eos": True, "stream": True},
        )
        response = toy.http.send(request, stream=True)
        pieces.append((response, next(response.iter_raw())))
    for response, _ in pieces:
        response.close()
    until(lambda: not toy.client.open_requests)
    idle = toy.snapshot()
    assert (idle.running, idle.waiting) == (0, 0)
    assert (idle.pools[0].in_use, idle.pools[0].pinned) == (0, 0)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(json.dumps(toy_mapping()))
    return path


def test_the_python_api_runs_a_recipe(recipe_file: Path) -> None:
    greedy = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    with LLM(recipe_file, ["cache.prefix=false"]) as llm:
        first, second = llm.generate(["Hello", "Hello"], greedy)
        assert first.token_ids == second.token_ids
        chat = llm.chat([{"role": "user", "content": "Hi"}], greedy)
    assert (len(first.token_ids), first.usage.prompt_tokens) == (5, 5)
    assert (len(chat.token_ids), chat.usage.prompt_tokens) == (5, 21)


def test_engine_run_prints_text_ids_and_timings(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(recipe_file), "--prompt", "Hello", "--max-tokens", "4"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["token_ids"]) <= 4
    assert set(report["timings"]) == {"load_s", "ttft_ms", "total_s", "out_tok_s"}
    assert main([*arguments, "--chat"]) == 0
    assert "token_ids: [" in capsys.readouterr().out
    assert main([*arguments, "--temperature", "-1"]) == 1
    assert "temperature must be at least 0" in capsys.readouterr().err


@pytest.fixture
def remote() -> Iterator[RemoteClient]:
    client = RemoteClient(Boot.of(toy_recipe()))
    yield client
    client.close()


def test_an_engine_process_composes_the_recipe_that_it_is_told(remote: RemoteClient) -> None:
    assert remote.wait_ready(50).components["cache"] == "paged"
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    request = Request(id="a", spans=(TokenSpan([1, 2, 3]),), params=params)

    async def run() -> list[int]:
        return [id async for output in remote.generate(request) for id in output.token_ids]

    assert len(asyncio.run(run())) == 5


def test_a_new_version_of_a_namespace_outdates_the_pages_of_the_old_one(toy) -> None:
    def cached(version: int, salt: str = "") -> int:
        asked = {"prompt": [7] * 50, "max_tokens": 1, "cache_salt": salt}
        body = toy.complete(**asked, cache={"namespace": "news", "version": version}).json()
        found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(1), cached(1), cached(1, "other"), cached(1, "other")] == [0, 48, 0, 48]
    assert [cached(2), cached(2), cached(1), cached(1)] == [0, 48, 0, 0]
    assert cached(1, "other") == 48, "namespaces of other salts have versions of their own"


def test_a_time_to_live_bounds_how_long_pages_are_served(toy) -> None:
    def cached(**bound: float) -> int:
        scope = {"namespace": "prices", **bound}
        body = toy.complete(prompt=[9] * 50, max_tokens=1, cache=scope).json()
        found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached(), cached(), cached(ttl_s=3600)] == [0, 48, 48]
    time.sleep(0.05)
    assert cached(ttl_s=0.04) == 0, "pages of 0.05 seconds are too old for it"
    time.sleep(0.05)
    assert [cached(), cached()] == [0, 48], "what it wrote was good for 0.04 seconds"
