"""Cases of schedulers and caches on the toy: chunk sizes, and preemption with prefix hits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.request import RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import LLAMA, compose_toy, pool

LONG = {**LLAMA, "max_position_embeddings": 1024}
BUDGETS = (1, 16, 17, 64, 512, "off")


def long_prompts() -> dict[str, list[int]]:
    chance = random.Random(4)
    random_ids = {f"p{n}": [chance.randrange(256) for _ in range(700)] for n in range(2)}
    return {"repeated": [30] + [29] * 699, **random_ids}


def run_in_chunks(budget: int | str, *, company: bool) -> dict[str, RequestOutput]:
    step_tokens = budget if isinstance(budget, int) else 2048
    chunk = "off" if budget == "off" else "budget"
    engine = compose_toy(
        LONG,
        {
            "scheduler": {"step_tokens": max(step_tokens, 5 * company), "chunk_tokens": chunk},
            "cache": {"memory": "8MiB", "prefix": False},
            "engine": {"debug": False},
        },
    ).engine
    if company:
        for number in range(4):
            engine.submit(make_request(f"c{number}", [number, 9], 60, ignore_eos=True))
        engine.step()
    for name, prompt in long_prompts().items():
        engine.submit(make_request(name, prompt, 4, logprobs=1, ignore_eos=True))
    return {name: one for name, one in run_to_end(engine).items() if not name.startswith("c")}


@pytest.mark.parametrize("company", [False, True], ids=["alone", "with decodes"])
def test_CHK_01_the_chunk_budget_changes_no_answer(company: bool) -> None:
    wanted = run_in_chunks("off", company=False)
    for budget in (16, 17, 64, 512, "off") if company else (17, 512):
        got = run_in_chunks(budget, company=company)
        for name, one in got.items():
            assert one.token_ids == wanted[name].token_ids, (budget, name)
            assert one.logprobs == wanted[name].logprobs, (budget, name)


@pytest.mark.slow
def test_CHK_01_a_chunk_of_one_token_changes_no_answer() -> None:
    assert run_in_chunks(1, company=False) == run_in_chunks("off", company=False)


def shared_prefix_requests(seed: int) -> list[Any]:
    chance = random.Random(seed)
    common = [chance.randrange(256) for _ in range(32)]
    return [
        make_request(
            f"r{number}",
            common + [chance.randrange(256) for _ in range(chance.randint(1, 9))],
            12,
            ignore_eos=True,
        )
        for number in range(64)
    ]


def run_shared(seed: int, cache: dict[str, Any]) -> tuple[dict[str, list[int]], Any]:
    engine = compose_toy(
        LLAMA, {"cache": cache, "scheduler": {"max_running": 16, "step_tokens": 64}}
    ).engine
    for request in shared_prefix_requests(seed):
        engine.submit(request)
    return {name: one.token_ids for name, one in run_to_end(engine).items()}, engine


@pytest.mark.parametrize("seed", range(5))
def test_PRE_02_a_prefix_hit_after_preemption_keeps_the_budget_and_the_answer(seed: int) -> None:
    wanted, _ = run_shared(seed, {"memory": "4MiB", "prefix": False})
    got, engine = run_shared(seed, {"memory": pool(40), "prefix": True})
    assert got == wanted
    assert engine.stats.preemptions["no_space"] > 0
    assert engine.stats.cached_tokens > 0
