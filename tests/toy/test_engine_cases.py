"""Cases of public bug reports on engines that are stepped by hand: pages, aborts, windows, NaN."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from camshaft.errors import CamshaftError
from camshaft.loop.engine import Engine
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.toy import LLAMA, compose_toy, pool, toy_recipe

CACHES: list[dict[str, Any]] = [
    {"use": "paged"},
    {"use": "radix"},
    {"use": "token_table", "page_tokens": 1},
    {"use": "modular"},
    {"use": "tiered", "tiers": [{"use": "memory", "capacity": "64KiB"}], "threads": 0},
]


def cache_of(one: dict[str, Any], tokens: int) -> dict[str, Any]:
    size = one.get("page_tokens", 4)
    return {"page_tokens": size, **one, "memory": pool(tokens // size, LLAMA, size)}


def ids(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(count)]


@pytest.mark.parametrize("cache", CACHES, ids=lambda one: one["use"])
def test_PFX_08_two_thousand_requests_lose_no_page(cache: dict[str, Any]) -> None:
    engine = compose_toy(
        changes={
            "cache": cache_of(cache, 600),
            "engine": {"executor": "null", "debug": False, "deterministic": False},
        }
    ).engine
    common = ids(40, 0)
    for round in range(20):
        for number in range(100):
            own = ids(5 + number % 7, 100 * round + number + 1)
            prompt = [common[:17], common + own, own][number % 3]
            engine.submit(make_request(f"{round}.{number}", prompt, 3, ignore_eos=True))
        results = run_to_end(engine)
        assert {one.finish for one in results.values()} == {"length"}
        for usage in engine.usage():
            assert (usage.in_use, usage.pinned) == (0, 0)
            assert usage.free + usage.evictable == usage.total
    assert engine.stats.cached_tokens > 0
    assert engine.parts.cache.check_integrity() == []
    engine.reset_cache()
    assert all(usage.free == usage.total for usage in engine.usage())


def chunked(cache: dict[str, Any], **more: Any) -> Engine:
    return compose_toy(
        changes={"cache": cache_of({**cache, **more}, 512), "scheduler": {"step_tokens": 16}}
    ).engine


def test_ABT_02_a_prompt_that_is_given_up_is_not_computed_to_its_end() -> None:
    engine = chunked({"use": "paged"})
    engine.submit(make_request("long", ids(400, 1), 8))
    for _ in range(3):
        engine.step()
    engine.abort("long")
    results = run_to_end(engine)
    assert (results["long"].finish, results["long"].token_ids) == ("abort", [])
    assert engine.stats.step_tokens <= 3 * 16  # no chunk was launched after it
    assert engine.stats.output_tokens == 0


@pytest.mark.parametrize("cache", CACHES, ids=lambda one: one["use"])
def test_ABT_04_what_a_given_up_prompt_leaves_in_the_cache_is_right(cache: dict[str, Any]) -> None:
    prompt = ids(200, 2)
    cold = chunked({"use": "paged"}, prefix=False)
    cold.submit(make_request("again", prompt, 8, logprobs=2, ignore_eos=True))
    wanted = run_to_end(cold)["again"]
    engine = chunked(cache)
    engine.submit(make_request("first", prompt, 8))
    outputs: dict[str, RequestOutput] = {}
    for _ in range(4):
        collect(engine.step(), outputs)
    computed = engine.stats.step_tokens
    engine.abort("first")
    for number in range(20):
        engine.submit(make_request(f"other {number}", ids(9, 50 + number), 3, ignore_eos=True))
    outputs |= run_to_end(engine)
    assert (outputs["first"].finish, outputs["first"].token_ids) == ("abort", [])
    engine.submit(make_request("again", prompt, 8, logprobs=2, ignore_eos=True))
    found = run_to_end(engine)["again"]
    assert 0 < found.cached_tokens <= computed < 200
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)


@pytest.mark.parametrize("host_pages", [0, 2, 1000])
def test_PRE_04_a_host_tier_of_any_size_loses_no_answer(host_pages: int) -> None:
    tier = {"use": "memory", "capacity": (host_pages or 1) * 4 * 256}
    tiered = {"use": "tiered", "tiers": [tier], "threads": 0, "load": "always", "unit_tokens": 4}

    def run(cache: dict[str, Any], tokens: int) -> tuple[dict[str, list[int]], Engine]:
        engine = compose_toy(changes={"cache": cache_of(cache, tokens)}).engine
        for number in range(6):
            for sample in range(4):  # answers to one prompt
                request = make_request(
                    f"{number}.{sample}", ids(20, number), 40, seed=sample, temperature=0.9,
                    ignore_eos=True,
                )  # fmt: skip
                engine.submit(request)
        return {name: one.token_ids for name, one in run_to_end(engine).items()}, engine

    wanted, _ = run({"use": "paged", "prefix": False}, 4096)
    got, engine = run(tiered if host_pages else {"use": "paged"}, 24 * 16)
    assert got == wanted
    assert engine.stats.preemptions["no_space"] > 0
    assert [(usage.in_use, usage.pinned) for usage in engine.usage()] == [(0, 0)]
    assert engine.parts.cache.check_integrity() == []


@pytest.mark.parametrize("scheduler", ["continuous", "slo"])
def test_SCH_04_a_request_that_waits_for_much_memory_is_served_and_stops_nobody(
    scheduler: str,
) -> None:
    engine = compose_toy(
        changes={
            "cache": {"page_tokens": 4, "memory": pool(128), "prefix": False},
            "scheduler": {"use": scheduler, "max_running": 16},
            "engine": {"debug": False},
        }
    ).engine
    results: dict[str, RequestOutput] = {}
    engine.submit(make_request("running", ids(350, 1), 40, ignore_eos=True))
    for _ in range(8):
        collect(engine.step(), results)
    engine.submit(make_request("large", ids(400, 2), 4, ignore_eos=True))
    idle = 0
    for turn in range(90):
        engine.submit(make_request(f"small {turn}", ids(20, 10 + turn), 4, ignore_eos=True))
        collect(engine.step(), results)
        idle = idle + 1 if engine.view.waiting and not engine.view.running else 0
        assert idle < 3
    served = [name for name, one in results.items() if one.finish]
    finished = {name: results[name].finish for name in served}
    finished |= {name: one.finish for name, one in run_to_end(engine).items()}
    assert len(finished) == 92
    assert set(finished.values()) == {"length"}
    assert "large" in served  # before the flow had ended


def test_NUM_01_activations_that_overflow_end_only_their_request() -> None:
    def requests() -> list[Any]:
        prompts = {"good": [5, 6, 7], "bad": [5, 99, 7], "other": [8, 9]}
        return [make_request(name, prompt, 6, ignore_eos=True) for name, prompt in prompts.items()]

    alone: dict[str, RequestOutput] = {}
    for request in requests():
        engine = compose_toy().engine
        engine.submit(request)
        alone |= run_to_end(engine)
    engine = compose_toy().engine
    model: Any = engine.parts.executor.parts.model  # type: ignore[attr-defined]
    embed = model.embed

    def overflowing(tokens: torch.Tensor, step: Any) -> Any:
        handover = embed(tokens, step)
        first = handover[0] if isinstance(handover, tuple) else handover
        first[tokens == 99] = math.inf
        return handover

    model.embed = overflowing
    for request in requests():
        engine.submit(request)
    found = run_to_end(engine)
    assert (found["bad"].finish, found["bad"].token_ids) == ("error", [])
    assert "not finite" in found["bad"].message
    for name in ("good", "other"):
        assert found[name] == alone[name]
    assert engine.stats.finished == {"error": 1, "length": 2}
    engine.submit(make_request("again", [5, 99, 7], 2))
    assert run_to_end(engine)["again"].cached_tokens == 0  # its pages were forgotten


WINDOW = 8
SLIDING = {**LLAMA, "model_type": "mistral", "num_hidden_layers": 1, "sliding_window": WINDOW}


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("way", ["at once", "in chunks of one", "decoding"])
def test_NUM_04_a_token_sees_exactly_the_last_ones_of_its_window(attention: str, way: str) -> None:
    engine = compose_toy(
        SLIDING,
        {
            "attention": {"use": attention},
            "engine": {"deterministic": attention == "reference"},
            "scheduler": {"step_tokens": 1 if way == "in chunks of one" else 64},
            "cache": {"prefix": False},
        },
    ).engine

    def last(first: int, length: int) -> Any:
        prompt = [first, *range(20, 19 + length)]
        if way == "decoding":
            prompt.pop()
        count = 1 + (way == "decoding")
        name = f"{first} {length}"
        engine.submit(
            make_request(name, prompt, count, logprobs=5, ignore_eos=True, allowed_token_ids=(40,))
        )
        return run_to_end(engine)[name].logprobs[-1]

    for length in (WINDOW - 1, WINDOW):
        assert last(1, length) != last(2, length)
    assert last(1, WINDOW + 1) == last(2, WINDOW + 1)


@pytest.mark.parametrize("memory", ["1", "700", "100GiB"])
def test_MEM_03_memory_that_cannot_be_is_refused_with_the_figures(memory: str) -> None:
    with pytest.raises(CamshaftError, match=r"cache\.memory: .*free"):
        compose_toy(changes={"cache": {"memory": memory}})


def test_MEM_03_what_is_accepted_holds_a_full_batch_at_full_length() -> None:
    recipe = toy_recipe(changes={"cache": {"memory": "auto"}})
    engine = compose_toy(changes={"cache": {"memory": "auto"}}).engine
    room = engine.parts.room
    for number in range(recipe.scheduler.max_running):
        engine.submit(make_request(f"r{number}", ids(room - 4, number), 4, ignore_eos=True))
    assert {one.finish for one in run_to_end(engine).values()} == {"length"}
    assert not engine.stats.preemptions
