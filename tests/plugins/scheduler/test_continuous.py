from __future__ import annotations

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
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


def shares_of_the_newest_step(engine: object) -> dict[str, int]:
    batch = engine.flying[-1]  # type: ignore[attr-defined]
    return {share.state.request.id: share.tokens for share in batch.shares}


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
    engine.submit(make_request("b", [5] * 12))
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
