"""Requests that are preempted by swap and by recompute, at any moment: the same answers.

Every pair of values of two factors meets in one of the runs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from camshaft.contracts.predictor import StepShape, StepTimePredictor
from camshaft.contracts.scheduler import PreemptMode
from camshaft.errors import CamshaftError
from camshaft.loop.commit import PlanError
from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.preempting import BOTH, Preempting
from tests.pressure import of_tenants, press, requests
from tests.toy.test_schedulers import LATENESS, SCHEDULERS, covering_array, run

MODES: dict[str, tuple[PreemptMode, ...]] = {"swap": ("swap",), "both": BOTH}
CACHES: dict[str, dict[str, Any]] = {
    "paged": {"unit_tokens": 4},
    "units": {"unit_tokens": 12},
    "radix": {"over": "radix", "unit_tokens": 4},
    "token table": {
        "over": {"use": "token_table", "expected_share": 0.2},
        "page_tokens": 1,
        "unit_tokens": 4,
    },
}
FACTORS = (
    ("static", "continuous", "tenants", "nano", "slo"),
    tuple(CACHES),
    tuple(MODES),
    tuple(LATENESS),
)
MEMORY = {"use": "memory", "capacity": "1MiB"}


def engine_of(
    scheduler: str, cache: str, mode: str, lateness: str, model: dict[str, Any] = LLAMA, **more: Any
) -> Engine:
    size = CACHES[cache].get("page_tokens", 4)
    fields = {
        "use": "tiered",
        "tiers": [MEMORY],
        "load": "always",
        "memory": pool(56 // size, model, size),
        "threads": 0,
        **CACHES[cache],
        **more,
    }
    changes = {
        "scheduler": {"step_tokens": 40, "max_running": 6, **SCHEDULERS[scheduler]},
        "cache": fields,
        "engine": {"poison": True, **LATENESS[lateness]},
    }
    parts = compose_toy(model, changes).engine.parts
    seed = sum(map(ord, scheduler + cache + mode + lateness))
    return Engine(replace(parts, scheduler=Preempting(parts.scheduler, MODES[mode], seed)))


def asked() -> list[Request]:
    return of_tenants(8, 20, stops=True)


@functools.cache
def alone(model: str) -> dict[str, RequestOutput]:
    changes: dict[str, dict[str, Any]] = {
        "engine": {"depth": 0},
        "cache": {"prefix": False},
        "scheduler": {"max_running": 1},
    }
    engine = compose_toy(MODELS[model], changes).engine
    for one in asked():
        engine.submit(one)
    return run_to_end(engine)


MODELS = {"llama": LLAMA, "hybrid": HYBRID}


def check(engine: Engine, model: str = "llama") -> None:
    """Run to the end, and compare with each request alone."""
    found = run(engine, asked())
    for name, wanted in alone(model).items():
        assert found[name].token_ids == wanted.token_ids, name
        assert found[name].logprobs == wanted.logprobs, name
    assert all(one.in_use == one.pinned == 0 for one in engine.usage())
    counts = engine.cache_counters()
    assert engine.stats.swaps["chance"] > 0
    assert counts["swaps_out"] == engine.stats.swaps.total()
    assert counts["swaps_back_whole"] > 0
    engine.close()


@pytest.mark.parametrize(("scheduler", "cache", "mode", "lateness"), covering_array(FACTORS))
def test_answers_do_not_depend_on_how_requests_are_preempted(
    scheduler: str, cache: str, mode: str, lateness: str
) -> None:
    check(engine_of(scheduler, cache, mode, lateness))


def test_windows_are_swapped_too() -> None:
    check(engine_of("continuous", "paged", "swap", "two late", HYBRID), "hybrid")


@pytest.mark.parametrize("cache", ["paged", "radix"])
def test_under_pressure_with_aborts_everything_ends_and_nothing_is_kept(cache: str) -> None:
    work = requests(30, seed=3)
    engine = engine_of("continuous", cache, "both", "a step", threads=2)
    outcome = press(engine, [one for one in work if len(one.prompt_ids) < 40], seed=2)
    assert {one.finish for one in outcome.results.values()} <= {"length", "abort"}
    assert all(one.free + one.evictable == one.total for one in engine.usage())
    assert engine.parts.cache.check_integrity() == []
    assert engine.stats.swaps.total() > 0  # how many is up to the threads
    engine.close()


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_of_an_answer_with_stop_strings_nobody_else_gets_more_than_the_prompt(
    stop: tuple[str, ...],
) -> None:
    engine = engine_of("continuous", "paged", "swap", "at once", memory=pool(100))
    engine.submit(make_request("first", range(1, 14), 30, ignore_eos=True, stop=stop))
    for _ in range(20):
        engine.step()
    state = engine.states["first"]
    told = list(state.tokens)
    engine.committer.preempt(state, "planned", "swap")
    engine.submit(make_request("second", [*told, 5], 1))
    cached = run_to_end(engine)["second"].cached_tokens
    assert (len(told), cached) == (33, 12 if stop else 32)
    assert engine.cache_counters()["swaps_back_whole"] == 1
    engine.close()


class PerToken(StepTimePredictor):
    """Says that a step takes so many seconds for each token."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def predict(self, shape: StepShape) -> float:
        return self.seconds * shape.tokens

    def observe(self, shape: StepShape, seconds: float) -> None:
        pass


@pytest.mark.parametrize("scheduler", ["continuous", "slo"])
@pytest.mark.parametrize("token_s", [1.0, 0.0])
def test_by_default_what_takes_long_to_compute_is_swapped(scheduler: str, token_s: float) -> None:
    parts = engine_of(scheduler, "paged", "swap", "a step").parts
    assert isinstance(parts.scheduler, Preempting)
    parts = replace(parts, scheduler=parts.scheduler.inner, predictor=PerToken(token_s))
    engine = Engine(parts)
    found = run(engine, asked())
    assert {name: one.token_ids for name, one in found.items()} == {
        name: one.token_ids for name, one in alone("llama").items()
    }
    assert engine.stats.preemptions["no_space"] > 0
    assert (engine.stats.swaps["no_space"] > 0) == (token_s > 0)
    engine.close()


def test_a_scheduler_that_swaps_without_tiers_is_told_so() -> None:
    parts = compose_toy(LLAMA, {"cache": {"memory": pool(12)}}).engine.parts
    engine = Engine(replace(parts, scheduler=Preempting(parts.scheduler, ("swap",))))
    with pytest.raises(PlanError, match="Preempting: it preempts by swap, and this cache has no"):
        run(engine, asked())


@pytest.mark.parametrize("scheduler", ["continuous", "slo"])
def test_a_recipe_that_swaps_without_tiers_is_refused(scheduler: str) -> None:
    changes = {"scheduler": {"use": scheduler, "preemption": "swap"}}
    with pytest.raises(CamshaftError, match="'tiered' over it does"):
        compose_toy(LLAMA, changes)
