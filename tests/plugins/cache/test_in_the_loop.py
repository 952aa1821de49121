"""The paged cache under the real loop and scheduler, in debug mode, with steps in flight."""

from __future__ import annotations

import pytest

from camshaft.contracts.cache import CacheSpec
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine, run_to_end


def scheduler(limits: SchedulerLimits) -> Continuous:
    return Continuous(ContinuousSettings(), limits)


def cache(spec: CacheSpec) -> Paged:
    return Paged(PagedSettings(), spec)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_requests_with_a_common_prefix_end_although_pages_are_short(depth: int) -> None:
    engine = model_free_engine(scheduler, cache=cache, pages=24, depth=depth, late_steps=depth)
    for number in range(20):
        engine.submit(make_request(f"r{number}", [5] * 21 + [100 + number] * 3, max_tokens=40))
    results = run_to_end(engine)
    assert {len(one.token_ids) for one in results.values()} == {40}
    assert engine.stats.cached_tokens > 0
    assert sum(engine.stats.preemptions.values()) > 0
    usage = engine.usage()[0]
    assert usage.free + usage.evictable == 24
    assert engine.stats.evictions["space"] > 0


@pytest.mark.parametrize("returned", [0, 7, 8, 11])
def test_PFX_06_tokens_behind_a_stop_string_found_outside_are_not_cached(returned: int) -> None:
    engine = model_free_engine(scheduler, cache=cache, pages=100, late_steps=1)
    prompt = list(range(100, 110))
    engine.submit(make_request("a", prompt, 50, stop=("x",)))
    for _ in range(30):
        engine.step()
    engine.abort("a", "stop", returned)
    engine.submit(make_request("b", [*prompt, *[7] * 30], 1))
    # whole pages of 4; of the answer only what was returned, and the prompt in any case
    assert run_to_end(engine)["b"].cached_tokens == {0: 8, 7: 16, 8: 16, 11: 20}[returned]


@pytest.mark.parametrize("stop", [(), ("x",)])
def test_an_answer_that_ends_by_itself_is_cached_whole(stop: tuple[str, ...]) -> None:
    engine = model_free_engine(scheduler, cache=cache, pages=100, late_steps=1)
    engine.submit(make_request("a", list(range(100, 110)), 15, stop=stop))
    run_to_end(engine)
    engine.submit(make_request("b", [*range(100, 110), *[7] * 30], 1))
    assert run_to_end(engine)["b"].cached_tokens == 24  # 10 + 15, less the one never computed


def test_a_second_turn_reuses_the_answer_of_the_first() -> None:
    engine = model_free_engine(scheduler, cache=cache, pages=100, late_steps=1, step_tokens=64)
    history = list(range(100, 120))
    for turn in range(5):
        engine.submit(make_request(f"turn {turn}", history, max_tokens=10))
        answer = run_to_end(engine)[f"turn {turn}"]
        if turn:
            # All but the 2 new tokens and the last answered one, which was never computed.
            assert answer.cached_tokens == (len(history) - 3) // 4 * 4
        history = [*history, *answer.token_ids, 200 + turn, 201 + turn]
