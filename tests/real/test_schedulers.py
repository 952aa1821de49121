"""Schedulers on the real model, with pages for two requests: the same tokens as one at a time."""

from __future__ import annotations

import functools

import pytest

from camshaft import open_recipe
from camshaft.compose import Composed, compose
from camshaft.testing.engines import make_request, run_to_end

pytestmark = pytest.mark.real

TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "Water boils at",
    "Roses are red,",
)
NEW = 8

SCARCE = ("cache.page_tokens=4", f"cache.memory={7 * 4 * 46080}", "scheduler.max_running=4")
"""Six pages beside the one that nobody gets; a request takes three or four."""


def composed(*overrides: str) -> Composed:
    return compose(open_recipe("recipes/reference.yaml", ("hardware.threads=1", *overrides)))


def answers(one: Composed) -> dict[str, list[int]]:
    for number, text in enumerate(TEXTS):
        ids = one.text.tokenizer.encode(text, special=True)
        request = make_request(f"r{number}", ids, NEW, ignore_eos=True, tenant=f"t{number % 2}")
        one.engine.submit(request)
    return {name: result.token_ids for name, result in run_to_end(one.engine).items()}


@functools.cache
def one_at_a_time() -> dict[str, list[int]]:
    return answers(composed("cache.memory=16MiB", "scheduler.max_running=1", "engine.depth=0"))


@pytest.mark.parametrize(
    "scheduler",
    [
        ("use=static", "batch_size=4"),
        ("order=tenants", "chunk_tokens=3"),
    ],
    ids=["static", "tenants"],
)
def test_answers_do_not_depend_on_who_schedules(scheduler: tuple[str, ...]) -> None:
    one = composed(*SCARCE, *(f"scheduler.{setting}" for setting in scheduler))
    assert answers(one) == one_at_a_time()
    assert one.engine.stats.preemptions["no_space"] > 0
    one.engine.close()


def test_answers_are_the_same_after_requests_were_swapped_out() -> None:
    tiers = ("cache.use=tiered", "cache.host_memory=16MiB", "scheduler.preemption=swap")
    one = composed(*SCARCE, *tiers)
    assert answers(one) == one_at_a_time()
    assert one.engine.stats.swaps["no_space"] > 0
    assert one.engine.cache_counters()["swaps_back_whole"] > 0
    one.engine.close()
