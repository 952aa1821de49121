from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.loop.commit import PlanError
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings, NanoBatchSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.plugins.scheduler.nano_batch import NanoBatch
from camshaft.plugins.scheduler.nano_split import by_phase, by_tokens
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine, run_to_end
from camshaft.testing.scheduler import SchedulerContract


def nano_batch(limits: SchedulerLimits, **settings: object) -> NanoBatch:
    given = {"minimum_tokens": 1, **settings}
    return NanoBatch(NanoBatchSettings.model_validate(given), limits)


class TestContract(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return nano_batch(limits, shares=(1, 1, 2))


class TestContractByPhase(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return nano_batch(limits, by="phase")


@pytest.mark.parametrize(
    ("decodes", "prompts", "shares", "sizes"),
    [
        (4, [], (1, 1), (2, 2)),
        (4, [], (1, 3), (1, 3)),
        (0, [8, 8, 8], (1, 1, 1), (1, 1, 1)),
        (2, [30, 10, 10], (1, 1), (3, 2)),
        (256, [1792], (0.5, 0.5), (256, 1)),
        (3, [4, 4, 4], (1, 2), (3, 3)),
        (0, [24, 8], (1, 1, 1), (1, 1)),
        (1, [], (1, 1), ()),
        (0, [64], (1, 1), ()),
        (0, [], (1, 1), ()),
    ],
)
def test_cuts_are_between_requests_and_near_to_the_shares(
    decodes: int, prompts: list[int], shares: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    assert by_tokens(decodes, prompts, shares) == sizes


def test_a_step_of_one_phase_is_not_cut_by_phase() -> None:
    assert by_phase(3, 2) == (3, 2)
    assert by_phase(3, 0) == by_phase(0, 2) == ()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 40),
    st.lists(st.integers(1, 500), max_size=8),
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=4),
)
def test_no_cut_could_be_nearer_to_its_share(
    decodes: int, prompts: list[int], shares: list[float]
) -> None:
    sizes = by_tokens(decodes, prompts, shares)
    ends = list(accumulate([1] * decodes + prompts))
    assert sum(sizes) == (len(ends) if sizes else 0)
    assert min(sizes, default=1) >= 1
    if len(ends) < 2:
        return
    cuts = {ends[place - 1] for place in accumulate(sizes[:-1])}
    for share in list(accumulate(shares))[:-1]:
        wanted = share / sum(shares) * ends[-1]
        least = min(abs(end - wanted) for end in ends[:-1])
        assert min(abs(cut - wanted) for cut in cuts) <= least + 1e-6


def newest(engine: Engine) -> dict[str, int]:
    batch = engine.flying[-1]
    names = [state.request.id for state in batch.columns.states]
    return dict(zip(names, batch.nano_batch.tolist(), strict=False))


def two_decodes_and_a_prompt(**changes: object) -> Engine:
    engine = model_free_engine(
        lambda limits: nano_batch(limits, **changes), pages=100, step_tokens=32
    )
    for name, token in (("a", 5), ("b", 7)):
        engine.submit(make_request(name, [token] * 4, 20))
    engine.step()
    engine.submit(make_request("long", [6] * 28))
    engine.step()
    return engine


def test_prompts_are_kept_apart_from_decodes() -> None:
    assert newest(two_decodes_and_a_prompt(by="phase")) == {"a": 0, "b": 0, "long": 1}


def test_a_step_below_the_minimum_stays_whole() -> None:
    engine = two_decodes_and_a_prompt(minimum_tokens=31)
    assert newest(engine) == {}
    assert engine.stats.nano_steps == 0
    assert newest(two_decodes_and_a_prompt(minimum_tokens=30)) == {"a": 0, "b": 0, "long": 1}


def test_steps_in_nano_batches_are_counted() -> None:
    engine = model_free_engine(nano_batch)
    for name, token in (("a", 5), ("b", 7)):
        engine.submit(make_request(name, [token] * 4, 5))
    run_to_end(engine)
    assert (engine.stats.steps, engine.stats.nano_steps) == (5, 5)


class Miscounting(NanoBatch):
    """Counts an item that is not there."""

    sizes = (1, 2)

    def plan(self, view):
        return replace(super().plan(view), nano_batches=self.sizes)


class Empty(Miscounting):
    sizes = (2, 0)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (Miscounting, r"nano-batches have \(1, 2\) items, and 2 are planned"),
        (Empty, r"nano-batches have \(2, 0\) items, and 2 are planned"),
    ],
)
def test_nano_batches_that_are_not_all_items_are_refused(
    scheduler: type[NanoBatch], words: str
) -> None:
    engine = model_free_engine(lambda limits: scheduler(NanoBatchSettings(), limits))
    for name, token in (("a", 5), ("b", 7)):
        engine.submit(make_request(name, [token] * 4, 5))
    with pytest.raises(PlanError, match=f"scheduler {scheduler.__name__}: {words}"):
        engine.step()


class OneByOne(NanoBatch):
    """Lists decodes as they like it, each as a nano-batch of its own."""

    def plan(self, view):
        plan = super().plan(view)
        plan.one_each = list(plan.one_each)[::-1]
        plan.nano_batches = (1,) * (len(plan.one_each) + len(plan.items))
        return plan


def test_decodes_may_be_listed_in_any_order() -> None:
    engine = model_free_engine(lambda limits: OneByOne(NanoBatchSettings(), limits))
    for name, token in (("a", 5), ("b", 7), ("c", 9)):
        engine.submit(make_request(name, [token] * 4, 9))
    engine.step()
    assert newest(engine) == {"a": 0, "b": 1, "c": 2}
    engine.step()
    assert newest(engine) == {"a": 2, "b": 1, "c": 0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "phase", "shares": (0.3, 0.7)}, "`shares` has an effect only with `by: tokens`"),
        ({"shares": (1.0,)}, "at least 2 items"),
        ({"shares": (1.0, 0.0)}, "greater than 0"),
        ({"minimum_tokens": 0}, "greater than 0"),
        ({"output_weight": 3.0}, "`output_weight` has an effect only with `order: tenants`"),
    ],
)
def test_settings_without_effect_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NanoBatchSettings.model_validate(given)


def course(scheduler: type[Scheduler], given: ContinuousSettings, seed: int) -> list[object]:
    """Return what runs in each turn, with scarce pages and aborts."""
    chance, turns = random.Random(seed), list[object]()
    engine = model_free_engine(
        lambda limits: scheduler(given, limits),  # type: ignore[call-arg]
        pages=14,
        step_tokens=12,
        max_running=5,
        depth=seed % 3,
        late_steps=seed % 3,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )
    results: dict[str, RequestOutput] = {}
    for number in range(60):
        if number < 25:
            prompt = [5] * chance.randint(1, 20)
            engine.submit(make_request(f"r{number}", prompt, chance.randint(1, 12)))
        if chance.random() < 0.2:
            engine.abort(f"r{chance.randint(0, number)}")
        collect(engine.step(), results)
        flying = [batch.columns.numbers.tolist() for batch in engine.flying]
        turns.append((flying, sorted(results), dict(engine.stats.preemptions)))
    return turns


@pytest.mark.parametrize("seed", range(3))
def test_who_runs_does_not_depend_on_cuts(seed: int) -> None:
    cut = NanoBatchSettings(minimum_tokens=2, shares=(1, 2, 1))
    assert course(NanoBatch, cut, seed) == course(Continuous, ContinuousSettings(), seed)
