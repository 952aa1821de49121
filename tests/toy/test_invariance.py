"""In the deterministic configuration an answer is the same whatever happens around the request."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest

from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.pressure import staggered

MODELS = {"llama": LLAMA, "hybrid": HYBRID}
SEEDED: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
}


@functools.cache
def requests() -> tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]:
    """Twelve requests: half greedy, half seeded, some with a common beginning."""
    chance = random.Random(5)
    common = [chance.randrange(256) for _ in range(21)]
    made = []
    for number in range(12):
        own = [chance.randrange(256) for _ in range(chance.choice([1, 3, 8, 30]))]
        prompt = (common if number % 3 else []) + own
        params: dict[str, Any] = {"max_tokens": 14, "ignore_eos": True, "logprobs": 2}
        if number % 2:
            params |= {**SEEDED, "seed": 100 + number}
        made.append((f"r{number}", tuple(prompt), params))
    return tuple(made)


def fresh() -> list[Request]:
    return [make_request(name, prompt, **params) for name, prompt, params in requests()]


@functools.cache
def alone(model: str) -> dict[str, RequestOutput]:
    """Each request by itself, cold: what every other run must equal."""
    results: dict[str, RequestOutput] = {}
    for request in fresh():
        composed = compose_toy(MODELS[model], {"engine": {"depth": 0}, "cache": {"prefix": False}})
        composed.engine.submit(request)
        results |= run_to_end(composed.engine)
    return results


def same(got: dict[str, RequestOutput], model: str) -> None:
    for name, wanted in alone(model).items():
        assert got[name].token_ids == wanted.token_ids, name
        assert got[name].logprobs == wanted.logprobs, name


def run(model: str, changes: dict[str, dict[str, Any]], order: list[Request] | None = None) -> Any:
    engine = compose_toy(MODELS[model], changes).engine
    for request in order or fresh():
        engine.submit(request)
    results = run_to_end(engine)
    assert engine.usage()[0].in_use == engine.usage()[0].pinned == 0
    same(results, model)
    return engine


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_batched(model: str) -> None:
    engine = run(model, {"cache": {"prefix": False}})
    assert engine.stats.steps < 60


@pytest.mark.parametrize("step_tokens", [1, 5, 16])
def test_chunked(model: str, step_tokens: int) -> None:
    run(model, {"scheduler": {"use": "continuous", "step_tokens": step_tokens}})


def test_with_prefix_hits(model: str) -> None:
    engine = compose_toy(MODELS[model]).engine
    results: dict[str, RequestOutput] = {}
    for _ in range(2):
        for request in fresh():
            engine.submit(request)
        results = run_to_end(engine)
        same(results, model)
    assert engine.stats.cached_tokens > 100
    for name, prompt, _ in requests():
        assert results[name].cached_tokens == (len(prompt) - 1) // 4 * 4


def test_under_preemption(model: str) -> None:
    for prefix in (False, True):
        engine = run(
            model,
            {
                "cache": {"memory": pool(26, MODELS[model]), "prefix": prefix},
                "scheduler": {"step_tokens": 24},
            },
        )
        assert engine.stats.preemptions["no_space"] > 0


@pytest.mark.parametrize("late", [1, 2])
def test_with_results_that_are_late(model: str, late: int) -> None:
    engine = run(
        model,
        {
            "engine": {"depth": late, "executor": {"use": "late", "late_steps": late}},
            "cache": {"memory": pool(40, MODELS[model])},
        },
    )
    assert engine.stats.most_in_flight == late + 1
    assert engine.parts.executor.most_late == late
    assert engine.stats.preemptions["no_space"] > 0


def test_NUM_03_with_pages_that_are_poisoned_when_they_change_hands(model: str) -> None:
    engine = run(model, {"engine": {"poison": True}, "cache": {"memory": pool(30, MODELS[model])}})
    assert engine.stats.preemptions["no_space"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_with_staggered_arrivals_and_aborts(model: str, seed: int) -> None:
    chance = random.Random(seed)
    engine = compose_toy(
        MODELS[model],
        {
            "engine": {"depth": seed % 3, "poison": True},
            "cache": {"memory": pool(45, MODELS[model])},
            "scheduler": {"step_tokens": chance.choice([7, 32])},
        },
    ).engine
    order = fresh()
    chance.shuffle(order)
    same(staggered(engine, order, chance), model)
    for usage in engine.usage():
        assert (usage.in_use, usage.pinned) == (0, 0)


def test_pages_of_other_salts_are_not_shared(model: str) -> None:
    engine = compose_toy(MODELS[model]).engine
    prompt = list(range(40))
    for salt in ("a", "b", "a"):
        engine.submit(make_request(salt, prompt, 4, salt=salt))
        cached = run_to_end(engine)[salt].cached_tokens
        assert cached == (36 if engine.stats.requests == 3 else 0)


def test_page_sizes_change_nothing(model: str) -> None:
    for page_tokens, depth in itertools.product((1, 3, 16), (0, 1)):
        run(model, {"cache": {"page_tokens": page_tokens}, "engine": {"depth": depth}})
