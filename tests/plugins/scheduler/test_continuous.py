from __future__ import annotations

import pytest

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.scheduler import SchedulerContract


def continuous(limits: SchedulerLimits, **settings: object) -> Continuous:
    return Continuous(ContinuousSettings.model_validate(settings), limits)


class TestContract(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits)


class TestContractInChunks(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits, chunk_tokens=3)


class TestContractOfWholePrompts(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return continuous(limits, chunk_tokens="off")


def shares_of_the_newest_step(engine: Engine) -> dict[str, int]:
    columns = engine.flying[-1].columns
    names = [state.request.id for state in columns.states]
    return dict(zip(names, columns.tokens.tolist(), strict=True))


def test_a_decode_is_not_delayed_by_a_long_prompt() -> None:
    engine = model_free_engine(continuous, step_tokens=8, pages=100)
    engine.submit(make_request("short", [5] * 4, max_tokens=20))
    engine.step()
    engine.submit(make_request("long", [5] * 60))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"short": 1, "long": 7}


def test_a_chunk_size_caps_what_one_prompt_takes() -> None:
    engine = model_free_engine(lambda limits: continuous(limits, chunk_tokens=5), step_tokens=16)
    engine.submit(make_request("a", [5] * 12))
    engine.submit(make_request("b", [6] * 12))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 5, "b": 5}


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, chunk_tokens="off"), step_tokens=16
    )
    engine.submit(make_request("a", [5] * 10))
    engine.submit(make_request("b", [5] * 10))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 10}


def test_the_latest_arrival_gives_way() -> None:
    engine = model_free_engine(continuous, pages=8, page_tokens=4, depth=0)
    for name in ("first", "second"):
        engine.submit(make_request(name, [5] * 8, max_tokens=16))
    run_to_end(engine)
    assert engine.stats.preemptions["no_space"] > 0
    assert engine.stats.finished == {"length": 2}


COMMON = list(range(8))


def engine_of_three_prompts(**settings: object) -> Engine:
    """Two prompts begin with the same 8 tokens, two pages; one comes between them."""
    engine = model_free_engine(
        lambda limits: continuous(limits, **settings),
        step_tokens=64,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )
    prompts = {"a": [*COMMON, 50], "other": [60, 61, 62, 63, 64], "b": [*COMMON, 70, 71]}
    for name, prompt in prompts.items():
        engine.submit(make_request(name, prompt))
    return engine


def test_a_prompt_waits_a_step_for_the_prefix_that_another_computes() -> None:
    engine = engine_of_three_prompts()
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 9, "other": 5}
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 1, "other": 1, "b": 2}
    assert run_to_end(engine)["b"].cached_tokens == 8


def test_prompts_compute_a_common_prefix_each_where_sharing_is_off() -> None:
    engine = engine_of_three_prompts(share_prefixes=False)
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 9, "other": 5, "b": 10}


def test_a_prompt_follows_another_through_its_chunks() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, chunk_tokens=6),
        step_tokens=64,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )
    for name in ("a", "b"):
        engine.submit(make_request(name, list(range(16))))
    shares = []
    for _ in range(4):
        engine.step()
        shares.append(shares_of_the_newest_step(engine))
    assert shares == [{"a": 6}, {"a": 6}, {"a": 4}, {"a": 1, "b": 4}]


def test_a_cache_that_shares_nothing_holds_nobody_up_for_long() -> None:
    engine = model_free_engine(continuous, step_tokens=64)
    for name in ("a", "b", "c"):
        engine.submit(make_request(name, COMMON))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 8}
    engine.step()
    assert shares_of_the_newest_step(engine) == {"a": 1, "b": 8, "c": 8}


def test_a_chunk_ends_at_a_multiple_and_leaves_no_sliver_to_the_next_prompt() -> None:
    # of 19 tokens a decode takes 1; the chunk of 18 ends at 16, and 2 are too few to begin with
    engine = model_free_engine(
        lambda limits: continuous(limits, chunk_align=4), step_tokens=19, pages=100
    )
    engine.submit(make_request("short", [5] * 4, max_tokens=20))
    engine.step()
    engine.submit(make_request("long", [5] * 30))
    engine.submit(make_request("other", [6] * 30))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"short": 1, "long": 16}


@pytest.mark.parametrize("step_tokens", [20, 15])
def test_short_prompts_and_short_steps_are_cut_where_the_budget_ends(step_tokens: int) -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, chunk_align=4), step_tokens=step_tokens
    )
    engine.submit(make_request("first", [5] * 13))
    engine.submit(make_request("second", [6] * 15))
    engine.step()
    assert shares_of_the_newest_step(engine) == {"first": 13, "second": step_tokens - 13}


def test_decodes_that_leave_less_than_a_multiple_do_not_stop_a_prompt() -> None:
    engine = model_free_engine(
        lambda limits: continuous(limits, chunk_align=4), step_tokens=18, pages=100, max_running=20
    )
    for index in range(16):
        engine.submit(make_request(f"short{index}", [index], max_tokens=20))
    engine.step()
    engine.submit(make_request("long", [50] * 40))
    engine.step()
    assert shares_of_the_newest_step(engine)["long"] == 2
