from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from camshaft.compose import compose
from camshaft.contracts.predictor import StepShape, StepTimePredictor
from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.errors import RecipeError
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.admit import LOOK_AHEAD
from camshaft.plugins.scheduler.bucket import bucket
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.scheduler import SchedulerContract
from camshaft.testing.toy import LLAMA, toy_mapping


def continuous(limits: SchedulerLimits, **settings: object) -> Continuous:
    return Continuous(ContinuousSettings.model_validate(settings), limits)


class TestContractByTenants(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits, order="tenants")


class TestContractByPrefix(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits, order="prefix", prefix_window=3)


class TestContractInBuckets(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits, length_buckets=(4, 16))


def engine_with(*, clock: VirtualClock | None = None, **settings: object) -> Engine:
    return model_free_engine(
        lambda limits: continuous(limits, **settings),
        step_tokens=10,
        max_running=1,
        depth=0,
        clock=clock,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )


def order_of_ends(engine: Engine) -> list[str]:
    ends = []
    while engine.has_work:
        ends += [one.id for one in engine.step() if one.finish]
    return ends


def ask(engine: Engine, name: str, tenant: str, prompt: int = 4, outputs: int = 1) -> None:
    start = sum(map(ord, name))  # so that no prompt is another one's prefix
    ids = [(start + place) % 900 for place in range(prompt)]
    engine.submit(make_request(name, ids, outputs, tenant=tenant))


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few() -> None:
    engine = engine_with(order="tenants")
    for name in ("a1", "a2", "a3", "a4"):
        ask(engine, name, "a")
    ask(engine, "b1", "b")
    ask(engine, "b2", "b")
    assert order_of_ends(engine) == ["a1", "b1", "a2", "b2", "a3", "a4"]


def test_a_long_prompt_counts_as_many_short_ones() -> None:
    engine = engine_with(order="tenants")
    ask(engine, "a1", "a", prompt=10)
    ask(engine, "a2", "a", prompt=10)
    for name in ("b1", "b2", "b3", "b4"):
        ask(engine, name, "b", prompt=5)
    assert order_of_ends(engine) == ["a1", "b1", "b2", "a2", "b3", "b4"]


def test_a_token_of_output_counts_twice() -> None:
    # a1 is charged 4 + 2 * 4, each of b 4 + 2; between equals the name decides
    engine = engine_with(order="tenants")
    ask(engine, "a1", "a", outputs=4)
    for name, tenant in (("a2", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b"), ("b4", "b")):
        ask(engine, name, tenant)
    assert order_of_ends(engine) == ["a1", "b1", "b2", "a2", "b3", "b4"]


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    engine = engine_with(order="tenants")
    for number in range(9):
        ask(engine, f"a{number}", "a")
    ends = []
    for _ in range(6):
        ends += [one.id for one in engine.step() if one.finish]
    ask(engine, "b1", "b")
    ask(engine, "b2", "b")
    assert [*ends, *order_of_ends(engine)][6:] == ["a6", "b1", "a7", "b2", "a8"]


def test_two_tenants_that_always_wait_are_served_alike_whatever_they_ask_for() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, order="tenants"), step_tokens=16, max_running=3, pages=200
    )
    for number in range(60):
        ask(engine, f"few-long{number}", "long", prompt=20, outputs=10)
        ask(engine, f"many-short{number}", "short", prompt=4, outputs=3)
        ask(engine, f"more-short{number}", "short", prompt=4, outputs=3)
    served: Counter[str] = Counter()
    for _ in range(250):
        for one in engine.step():
            tenant = one.id.partition("-")[2].rstrip("0123456789")
            prompt = {"long": 20, "short": 4}[tenant] if one.finish else 0
            served[tenant] += prompt + 2 * len(one.token_ids)
    assert len(engine.view.waiting) > 20
    assert served["short"] == pytest.approx(served["long"], rel=0.1)


def test_what_the_cache_holds_goes_first() -> None:
    engine = engine_with(order="prefix")
    engine.submit(make_request("warm", range(8), 1))
    run_to_end(engine)
    engine.submit(make_request("cold", range(100, 109), 1))
    engine.submit(make_request("half", [*range(4), 99, 98, 97, 96, 95], 1))
    engine.submit(make_request("most", [*range(8), 99], 1))
    assert order_of_ends(engine) == ["most", "half", "cold"]


def test_who_waited_too_long_goes_before_those_that_the_cache_holds() -> None:
    clock = VirtualClock(start=1.0)
    engine = engine_with(order="prefix", prefix_age_s=5.0, clock=clock)
    engine.submit(make_request("warm", range(8), 1))
    run_to_end(engine)
    engine.submit(make_request("cold", range(100, 109), 1))
    clock.advance_to(3.0)
    engine.submit(make_request("most", [*range(8), 99], 1))
    clock.advance_to(6.0)
    assert order_of_ends(engine) == ["cold", "most"]


def test_only_the_first_of_the_queue_are_compared() -> None:
    engine = engine_with(order="prefix", prefix_window=2)
    engine.submit(make_request("warm", range(8), 1))
    run_to_end(engine)
    for name, prompt in (("a", range(100, 109)), ("b", range(200, 209)), ("c", range(9))):
        engine.submit(make_request(name, prompt, 1))
    assert order_of_ends(engine) == ["a", "c", "b"]


def test_lengths_fall_into_buckets() -> None:
    assert [bucket(tokens, (4, 8)) for tokens in (1, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]
    assert bucket(99, ()) == 0


def test_prompts_that_start_together_are_of_one_bucket() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, length_buckets=(8,)), step_tokens=64
    )
    for name, prompt in (("s1", 5), ("l1", 20), ("s2", 6), ("l2", 21)):
        ask(engine, name, "", prompt)
    starts = []
    for _ in range(2):
        engine.step()
        starts.append({state.request.id for state in engine.flying[-1].columns.states})
    assert starts == [{"s1", "s2"}, {"l1", "l2"}]


def test_a_step_looks_at_few_of_those_that_it_passes_over() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, length_buckets=(8,)), step_tokens=64, pages=2000
    )
    ask(engine, "short", "", 5)
    for number in range(LOOK_AHEAD):
        ask(engine, f"long{number}", "", 20)
    ask(engine, "behind", "", 5)
    engine.step()
    assert [state.request.id for state in engine.view.running] == ["short"]


def test_an_empty_step_looks_for_somebody_who_is_ready_however_many_are_not() -> None:
    engine = model_free_engine(continuous, step_tokens=64, pages=2000)
    for number in range(LOOK_AHEAD + 8):
        ask(engine, f"loading{number}", "", 5)
    for state in engine.view.waiting:
        state.in_flight = 1  # as one that was preempted, or waits for its pages
    ask(engine, "ready", "", 5)
    plan = engine.parts.scheduler.plan(engine.view)
    assert [item.request.uid for item in plan.items] == [LOOK_AHEAD + 9]


class PerToken(StepTimePredictor):
    """A millisecond for each token."""

    def __init__(self) -> None:
        pass

    def predict(self, shape: StepShape) -> float:
        return shape.tokens / 1e3

    def observe(self, shape: StepShape, seconds: float) -> None:
        pass


def tokens_of_steps(step_ms: float, steps: int, prompt: int = 200) -> list[int]:
    engine = model_free_engine(
        lambda limits: continuous(limits, step_ms=step_ms), step_tokens=128, pages=200
    )
    engine.view._predictor = PerToken()
    ask(engine, "short", "", 4, outputs=50)
    engine.step()
    ask(engine, "long", "", prompt)
    tokens = []
    for _ in range(steps):
        engine.step()
        tokens.append(int(engine.flying[-1].columns.tokens.sum()))
    return tokens


def test_a_chunk_keeps_the_step_within_its_time() -> None:
    first, second = tokens_of_steps(step_ms=60.0, steps=2)
    assert 56 <= first <= 60
    assert second == first


def test_a_prompt_goes_on_even_if_decodes_take_all_the_time() -> None:
    assert tokens_of_steps(step_ms=0.5, steps=3) == [17, 17, 17]


def test_a_prompt_without_company_takes_the_whole_step() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, step_ms=1.0), step_tokens=128, pages=200
    )
    engine.view._predictor = PerToken()
    ask(engine, "long", "", 200)
    engine.step()
    assert int(engine.flying[-1].columns.tokens.sum()) == 128


def test_a_limit_of_time_needs_somebody_who_predicts_it() -> None:
    settings = ContinuousSettings(step_ms=20)
    told = ["`step_ms` needs to know how long a step takes: name a `predictor`"]
    assert Continuous.supports(settings, predicts=False) == told
    assert not Continuous.supports(settings, predicts=True)
    mapping = toy_mapping(LLAMA, {"scheduler": {"step_ms": 20}})
    with pytest.raises(RecipeError, match="scheduler: 'continuous': `step_ms` needs"):
        compose(parse_recipe(mapping, Registry.discover()))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"length_buckets": (8, 4)}, "`length_buckets` must ascend"),
        ({"chunk_tokens": "off", "step_ms": 20}, "`chunk_tokens: off` forbids"),
        ({"output_weight": 3}, "only with `order: tenants`"),
        ({"prefix_age_s": 3, "order": "tenants"}, "only with `order: prefix`"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ContinuousSettings.model_validate(settings)
