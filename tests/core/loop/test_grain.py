"""Small pages: requests that decode get and declare them some at a time, and lose nothing by it."""

from __future__ import annotations

import pytest

from camshaft.contracts.cache import CacheSpec, Delta, Hit, NoSpace, Prefix, Wait
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine, run_to_end


class Watched(Paged):
    """Keeps what was asked for and declared."""

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(PagedSettings(), spec)
        self.asked: list[int] = []
        self.declared: list[int] = []

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        self.asked.append(tokens)
        return super().allocate(uid, prefix, tokens, hit)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        self.declared.append(tokens)
        return super().commit(uid, tokens, step)


def engine_of(pages: int, page_tokens: int = 1) -> tuple[Engine, Watched]:
    made: list[Watched] = []

    def cache(spec: CacheSpec) -> Watched:
        made.append(Watched(spec))
        return made[0]

    def scheduler(limits: SchedulerLimits) -> Continuous:
        return Continuous(ContinuousSettings(), limits)

    engine = model_free_engine(scheduler, pages=pages, page_tokens=page_tokens, cache=cache)
    return engine, made[0]


def test_pages_of_one_token_are_granted_32_and_declared_64_at_a_time() -> None:
    engine, cache = engine_of(100)
    engine.submit(make_request("a", range(20), 60))
    run_to_end(engine)
    assert cache.asked == [20, 32, 64, 79]  # the last of the 80 tokens is never computed
    assert cache.declared == [20, 64, 79]


def test_pages_of_four_tokens_come_in_the_same_grain() -> None:
    engine, cache = engine_of(100, page_tokens=4)
    engine.submit(make_request("a", range(18), 60))
    run_to_end(engine)
    assert cache.asked == [20, 32, 64, 80]
    assert cache.declared == [18, 64, 77]


def test_pages_of_16_tokens_are_granted_one_by_one_and_declared_four_at_a_time() -> None:
    engine, cache = engine_of(10, page_tokens=16)
    engine.submit(make_request("a", range(20), 60))
    run_to_end(engine)
    assert cache.asked == [32, 48, 64, 80]
    assert cache.declared == [20, 64]  # of the fifth page a token is never computed


def test_large_pages_are_granted_and_declared_one_by_one() -> None:
    engine, cache = engine_of(10, page_tokens=100)
    engine.submit(make_request("a", range(90), 120))
    run_to_end(engine)
    assert cache.asked == [100, 200, 300]
    assert cache.declared == [100, 200]


def test_what_was_granted_ahead_comes_back_before_anybody_gives_way() -> None:
    engine, cache = engine_of(75)
    for name, first in (("a", 10), ("b", 100), ("c", 200)):
        engine.submit(make_request(name, range(first, first + 10), 16))  # 25 pages at the end
    results = run_to_end(engine)
    assert [len(results[name].token_ids) for name in "abc"] == [16, 16, 16]
    assert max(cache.asked) == 25
    assert sum(engine.stats.preemptions.values()) == 0


def test_one_that_needs_a_page_takes_it_from_what_others_have_ahead() -> None:
    engine, _ = engine_of(48)
    engine.submit(make_request("a", range(17), 28))
    for _ in range(4):
        engine.step()
    assert engine.usage()[0].in_use == 32
    engine.submit(make_request("b", range(100, 116), 3))  # through before a needs all of its 44
    run_to_end(engine)
    assert sum(engine.stats.preemptions.values()) == 0


def test_a_waiting_request_gets_what_was_granted_ahead() -> None:
    engine, _ = engine_of(48)
    engine.submit(make_request("a", range(17), 30))
    for _ in range(3):
        engine.step()
    assert engine.usage()[0].in_use == 32
    engine.submit(make_request("b", range(100, 124), 2))
    engine.step()
    assert len(engine.view.running) == 2
    assert engine.usage()[0].in_use <= 20 + 24


@pytest.mark.parametrize("stop", [(), ("x",)])
def test_a_preempted_request_finds_its_answer_to_the_token(stop: tuple[str, ...]) -> None:
    engine, cache = engine_of(100)
    engine.submit(make_request("a", range(20), 40, stop=stop))
    for _ in range(12):
        engine.step()
    (state,) = engine.view.running
    engine.committer.preempt(state, "planned")
    # 12 outputs but those in flight; where stop strings are looked for, they count for nobody
    assert cache.declared[-1] == (20 if stop else 20 + state.outputs - 1)
    assert cache.match(state.prefix, 100).ready == cache.declared[-1]
    run_to_end(engine)


def test_an_aborted_request_leaves_its_answer_to_the_next_turn() -> None:
    engine, cache = engine_of(100)
    engine.submit(make_request("a", range(20), 40))
    for _ in range(12):
        engine.step()
    outputs = engine.states["a"].outputs
    engine.abort("a")
    assert cache.match(Prefix([*range(20), *[7] * 30]), 49).ready == 20 + outputs - 1
