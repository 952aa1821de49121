"""The token table under the real loop and scheduler, in debug mode, with steps in flight."""

from __future__ import annotations

import pytest

from camshaft.contracts.cache import CacheSpec
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import TokenTableSettings
from camshaft.plugins.cache.token_table.manager import TokenTable
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine, run_to_end


def scheduler(limits: SchedulerLimits) -> Continuous:
    return Continuous(ContinuousSettings(), limits)


def engine_of(pages: int, depth: int, share: float = 1.0) -> Engine:
    def cache(spec: CacheSpec) -> TokenTable:
        return TokenTable(TokenTableSettings(expected_share=share), spec)

    return model_free_engine(
        scheduler, cache=cache, pages=pages, page_tokens=1, depth=depth, late_steps=depth
    )


def serve(engine: Engine) -> None:
    """Serve 20 requests of 24 + 40 tokens whose first 21 are equal."""
    for number in range(20):
        engine.submit(make_request(f"r{number}", [5] * 21 + [100 + number] * 3, max_tokens=40))
    results = run_to_end(engine)
    assert {len(one.token_ids) for one in results.values()} == {40}
    assert engine.stats.cached_tokens > 0
    usage = engine.usage()[0]
    assert (usage.in_use, usage.pinned) == (0, 0)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_with_lengths_foreseen_nobody_gives_way(depth: int) -> None:
    engine = engine_of(160, depth)
    serve(engine)
    assert sum(engine.stats.preemptions.values()) == 0
    assert engine.stats.waits > 0
    assert engine.stats.evictions["space"] > 0


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_with_short_answers_expected_more_run_at_once_and_some_give_way(depth: int) -> None:
    engine = engine_of(160, depth, share=0.0)
    serve(engine)
    assert sum(engine.stats.preemptions.values()) > 0


def test_a_pool_for_one_request_serves_many() -> None:
    engine = engine_of(64, 1)
    serve(engine)
    assert sum(engine.stats.preemptions.values()) == 0


def test_aborted_requests_make_room_for_those_that_wait() -> None:
    engine = engine_of(70, 1)
    for number in range(3):
        engine.submit(make_request(f"r{number}", [number] * 20, max_tokens=40))
    for _ in range(5):
        engine.step()
    assert len(engine.view.running) == 1
    engine.abort("r0")
    engine.abort("r1")
    assert len(run_to_end(engine)["r2"].token_ids) == 40


def test_a_second_turn_reuses_the_answer_of_the_first_to_the_token() -> None:
    engine = engine_of(400, 1)
    history = list(range(100, 120))
    for turn in range(5):
        engine.submit(make_request(f"turn {turn}", history, max_tokens=10))
        answer = run_to_end(engine)[f"turn {turn}"]
        if turn:
            # All but the 2 new tokens and the last answered one, which was never computed.
            assert answer.cached_tokens == len(history) - 3
        history = [*history, *answer.token_ids, 200 + turn, 201 + turn]
