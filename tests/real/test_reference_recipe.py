"""`recipes/reference.yaml` on the real model: greedy ids equal those of transformers in float32."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from camshaft import open_recipe
from camshaft.compose import Composed, compose
from camshaft.request import RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from tests.oracle import Greedy, smollm2_oracle

pytestmark = pytest.mark.real

TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The three primary colours are",
    "In 1969, the first",
    "SELECT name FROM",
    "Die Hauptstadt von Deutschland ist",
    "Roses are red,",
    "import numpy as",
    "The opposite of hot is",
    "2 + 2 =",
    "A haiku about rain:\n",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "To be, or not to be,",
)
CHATS = (
    "What is the capital of France?",
    "Name a fruit.",
    "Write one sentence about the sea.",
    "What is 7 times 6?",
)
NEW = 12
NEAR_TIE = 1e-4


@functools.cache
def composed(*overrides: str) -> Composed:
    return compose(
        open_recipe(
            "recipes/reference.yaml", ("cache.memory=64MiB", "hardware.threads=1", *overrides)
        )
    )


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    text = composed().text
    plain = [tuple(text.tokenizer.encode(one, special=True)) for one in TEXTS]
    chats = [text.template.render([{"role": "user", "content": one}]) for one in CHATS]
    return (*plain, *(tuple(one) for one in chats))


@functools.cache
def oracle(number: int) -> Greedy:
    return smollm2_oracle().greedy(list(prompts()[number]), NEW)


def check(results: dict[str, RequestOutput]) -> None:
    """Compare up to the first near-tie of the oracle's own."""
    assert len(results) > 0
    for name, got in results.items():
        wanted = oracle(int(name[1:])).certain(NEAR_TIE)
        assert got.token_ids[: len(wanted)] == wanted, name


def answers(engine: Any, numbers: Any, new: int = NEW) -> dict[str, RequestOutput]:
    for number in numbers:
        engine.submit(make_request(f"p{number}", prompts()[number], new, ignore_eos=new > NEW))
    return run_to_end(engine)


def test_all_near_ties_together_are_few() -> None:
    certain = sum(len(oracle(number).certain(NEAR_TIE)) for number in range(20))
    assert certain > 200, "near-ties would hide differences"


@pytest.mark.parametrize("part", range(2))
def test_each_prompt_alone(part: int) -> None:
    engine = composed("cache.prefix=false").engine
    for number in range(part, 20, 2):
        check(answers(engine, [number]))


def test_NUM_02_all_prompts_in_one_batch_give_the_same_bits_as_alone() -> None:
    engine = composed("cache.prefix=false").engine
    together = answers(engine, range(20))
    check(together)
    for number in (0, 7, 17):
        assert answers(engine, [number])[f"p{number}"].token_ids == together[f"p{number}"].token_ids


def test_in_chunks_of_seven_tokens() -> None:
    engine = composed("scheduler.step_tokens=7", "scheduler.max_running=4").engine
    check(answers(engine, (2, 16, 19, 5)))


def test_under_preemption() -> None:
    # 7 pages of 720 KiB: two of these chats fit when they start, and not when they end
    engine = composed("cache.memory=6MiB", "cache.prefix=false").engine
    check(answers(engine, (16, 17, 18, 19), new=24))
    assert engine.stats.preemptions["no_space"] > 0


def test_with_prefix_hits() -> None:
    engine = composed().engine
    check(answers(engine, (16, 17, 18, 19)))
    again = answers(engine, (16, 17, 18, 19))
    check(again)
    assert all(one.cached_tokens >= 16 for one in again.values())


@pytest.mark.parametrize("late", [1, 2])
def test_on_the_late_executor(late: int) -> None:
    overrides = (
        f"engine.depth={late}",
        f"engine.executor={{use: late, late_steps: {late}}}",
    )
    engine = composed(*overrides).engine
    check(answers(engine, random.Random(late).sample(range(20), 3)))
    assert engine.stats.most_in_flight == late + 1
