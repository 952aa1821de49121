"""What every KV manager does with prefixes and turns, under the whole engine, alone and nested."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from camshaft.compose.draw import draw
from camshaft.errors import RecipeError
from camshaft.loop.engine import Engine
from camshaft.registry import Registry
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool, toy_recipe

TIERED = {"use": "tiered", "tiers": [{"use": "memory", "capacity": "1MiB"}], "threads": 0}
CACHES: dict[str, dict[str, Any]] = {
    "paged": {"use": "paged", "page_tokens": 16},
    "radix": {"use": "radix", "page_tokens": 16},
    "token_table": {"use": "token_table", "page_tokens": 1},
    "tiered": {**TIERED, "page_tokens": 16},
    "tiered over radix": {**TIERED, "over": "radix", "page_tokens": 4},
    "tiered over token_table": {**TIERED, "over": "token_table", "page_tokens": 1},
    "modular": {"use": "modular", "page_tokens": 16},
    "modular over radix": {"use": "modular", "over": "radix", "page_tokens": 4},
    "modular over tiered": {"use": "modular", "over": TIERED, "page_tokens": 16},
}
every_cache = pytest.mark.parametrize("name", CACHES)


def engine_of(cache: dict[str, Any]) -> Engine:
    size = cache["page_tokens"]
    memory = pool(1024 // size, LLAMA, size)
    return compose_toy(changes={"cache": {**cache, "memory": memory}}).engine


@functools.cache
def cold_engine() -> Engine:
    return engine_of({"use": "paged", "page_tokens": 16, "prefix": False})


def answer(engine: Engine, prompt: list[int], tokens: int = 8, **fields: Any) -> RequestOutput:
    engine.submit(make_request("a", prompt, tokens, ignore_eos=True, logprobs=2, **fields))
    return run_to_end(engine)["a"]


@functools.cache
def cold(prompt: tuple[int, ...], tokens: int = 8) -> tuple[list[int], Any]:
    """Return what a prompt is answered without a cache."""
    found = answer(cold_engine(), list(prompt), tokens)
    return found.token_ids, found.logprobs


def test_all_managers_are_here() -> None:
    managers = {one.name for one in Registry.discover().components("cache")}
    assert {one["use"] for one in CACHES.values()} == managers


@every_cache
def test_a_model_with_windows_is_served_or_refused_before_a_weight_is_read(name: str) -> None:
    recipe = toy_recipe(HYBRID, {"cache": CACHES[name]})
    if name in {"paged", "tiered"}:
        assert [one.spec.window for one in draw(recipe).groups] == [0, 9]
        return
    with pytest.raises(RecipeError, match=r"layers.* Choose (cache 'paged'|another cache)"):
        draw(recipe)


@every_cache
def test_PFX_01_a_prompt_that_is_wholly_cached_computes_its_last_token(name: str) -> None:
    engine, size = engine_of(CACHES[name]), CACHES[name]["page_tokens"]
    for length in (1, 15, 16, 17, 32, 48, 32):
        prompt = list(range(100, 100 + length))
        for attempt in range(3):
            found = answer(engine, prompt)
            assert (found.token_ids, found.logprobs) == cold(tuple(prompt))
            if attempt:
                assert (length - 1) // size * size <= found.cached_tokens <= length - 1


@every_cache
def test_PFX_03_what_differs_in_one_token_is_another_prompt(name: str) -> None:
    engine, chance = engine_of(CACHES[name]), random.Random(3)
    base = [100 + place % 3 for place in range(64)]
    answer(engine, base)
    for place in (0, 15, 16, 17, 40, 63):
        prompt = [*base[:place], base[place] + chance.choice([-1, 31]), *base[place + 1 :]]
        found = answer(engine, prompt)
        assert found.cached_tokens <= place
        assert (found.token_ids, found.logprobs) == cold(tuple(prompt))


@every_cache
def test_PFX_05_every_turn_finds_what_the_last_one_generated(name: str) -> None:
    engine, size = engine_of(CACHES[name]), CACHES[name]["page_tokens"]
    chance = random.Random(5)
    conversation, known = [chance.randrange(256) for _ in range(40)], 0
    for _ in range(5):
        found = answer(engine, conversation, 20)
        assert (known - 1) // size * size <= found.cached_tokens < len(conversation)
        assert (found.token_ids, found.logprobs) == cold(tuple(conversation), 20)
        known = len(conversation) + 20
        conversation += found.token_ids + [chance.randrange(256) for _ in range(15)]


@every_cache
def test_PFX_06_what_came_behind_a_stop_string_is_not_cached(name: str) -> None:
    engine, size = engine_of(CACHES[name]), CACHES[name]["page_tokens"]
    prompt = list(range(100, 140))
    outputs: dict[str, RequestOutput] = {}
    engine.submit(make_request("stopped", prompt, 200, ignore_eos=True, stop=("x",)))
    while not outputs or len(outputs["stopped"].token_ids) < 60:
        collect(engine.step(), outputs)
    engine.abort("stopped", "stop", 9)
    longer = prompt + outputs["stopped"].token_ids[:60]
    found = answer(engine, longer)
    assert 48 // size * size <= found.cached_tokens <= 49  # of 40 + 9, the last not computed
    assert (found.token_ids, found.logprobs) == cold(tuple(longer))
