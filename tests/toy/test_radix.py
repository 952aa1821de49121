"""The radix cache under the whole engine, in debug mode: answers are those of requests alone."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from camshaft.errors import RecipeError
from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.pressure import check, press, requests, scarce_pages, staggered

SEEDED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1}


def fresh() -> list[Request]:
    """Requests with three beginnings, some of them equal; half greedy, half seeded."""
    chance = random.Random(7)
    starts = [[chance.randrange(256) for _ in range(length)] for length in (21, 34, 8)]
    made = []
    for number in range(14):
        own = [chance.randrange(256) for _ in range(chance.choice([1, 3, 8, 20]))]
        prompt = starts[number % 3] + (own if number % 5 else [])
        params: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1}
        if number % 2:
            params |= {**SEEDED, "seed": 50 + number}
        made.append(make_request(f"r{number}", prompt, **params))
    return made


@functools.cache
def alone() -> dict[str, RequestOutput]:
    results: dict[str, RequestOutput] = {}
    for request in fresh():
        engine = compose_toy(LLAMA, {"engine": {"depth": 0}, "cache": {"prefix": False}}).engine
        engine.submit(request)
        results |= run_to_end(engine)
    return results


def same(got: dict[str, RequestOutput]) -> None:
    for name, wanted in alone().items():
        assert got[name].token_ids == wanted.token_ids, name
        assert got[name].logprobs == wanted.logprobs, name


def radix(pages: int, page_tokens: int, engine: dict[str, Any], **scheduler: Any) -> Engine:
    memory = pool(pages, LLAMA, page_tokens)
    changes = {
        "cache": {"use": "radix", "page_tokens": page_tokens, "memory": memory},
        "engine": {"poison": True, **engine},
        "scheduler": {"step_tokens": 24, **scheduler},
    }
    return compose_toy(LLAMA, changes).engine


@pytest.mark.parametrize(
    ("pages", "page_tokens", "late", "share_prefixes"),
    [(104, 1, 0, False), (26, 4, 1, False), (26, 4, 2, True), (10, 16, 0, True)],
)
def test_answers_are_the_same_on_few_pages(
    pages: int, page_tokens: int, late: int, share_prefixes: bool
) -> None:
    executor = {"executor": {"use": "late", "late_steps": late}} if late else {}
    engine = radix(pages, page_tokens, {"depth": late, **executor}, share_prefixes=share_prefixes)
    results: dict[str, RequestOutput] = {}
    for _ in range(2):
        for request in fresh():
            engine.submit(request)
        results = run_to_end(engine)
        same(results)
    assert engine.stats.preemptions["no_space"] > 0
    assert engine.stats.cached_tokens > 0
    assert engine.stats.evictions["space"] > 0
    assert engine.usage()[0].in_use == engine.usage()[0].pinned == 0


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_same_in_any_order_with_aborts(seed: int) -> None:
    chance = random.Random(seed)
    engine = radix(45, 4, {"depth": seed}, step_tokens=chance.choice([7, 32]))
    order = fresh()
    chance.shuffle(order)
    same(staggered(engine, order, chance))


def test_a_pool_at_a_fifth_of_the_need_ends_every_request_and_gets_its_pages_back() -> None:
    work = requests(60, seed=1)
    engine = radix(
        scarce_pages(work, 24, 4, share=0.2),
        4,
        {"deterministic": False},
        step_tokens=64,
        max_running=24,
    )
    check(engine, work, press(engine, work, seed=2))


def test_answers_of_one_request_are_reused_by_the_next_to_the_token() -> None:
    engine = radix(200, 1, {})
    history = list(range(100, 120))
    for turn in range(4):
        engine.submit(make_request(f"turn {turn}", history, 10, ignore_eos=True))
        answer = run_to_end(engine)[f"turn {turn}"]
        # All but the new tokens and the last answered one, which was never computed.
        assert answer.cached_tokens == (len(history) - 3 if turn else 0)
        history = [*history, *answer.token_ids, 200 + turn, 201 + turn]


def test_equal_prompts_of_one_step_end_up_on_one_copy_of_their_pages() -> None:
    engine = radix(200, 4, {}, step_tokens=200, share_prefixes=False)
    for name in ("a", "b", "c"):
        engine.submit(make_request(name, range(40), 6, ignore_eos=True))
    most = 0
    results: dict[str, RequestOutput] = {}
    while engine.has_work:
        collect(engine.step(), results)
        most = max(most, engine.usage()[0].in_use)
    assert most == 10 + 3 * 2, "10 pages of the prompt once, and 2 of each answer"
    assert engine.stats.cached_tokens == 0
    assert len({tuple(one.token_ids) for one in results.values()}) == 1


def test_a_model_with_a_window_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="the model has sliding layers. Choose cache 'paged'"):
        compose_toy(HYBRID, {"cache": {"use": "radix"}})
