"""The loop around a cache that brings pages back late, in part, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from camshaft.contracts.cache import CacheSpec
from camshaft.errors import CamshaftError
from camshaft.executor.null import NullExecutor
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.host_tier import Fate, HostTier

PROMPT = list(range(1, 22))
WHOLE = 20
"""Tokens of the prompt in whole pages."""


def tier_of(engine: Engine) -> HostTier:
    tier = engine.parts.cache
    assert isinstance(tier, HostTier)
    return tier


def tiered(fates: Iterable[Fate] = (), **given: Any) -> Engine:
    """An engine whose transfers have these fates, and later ones the usual one."""
    chances = itertools.chain(fates, itertools.repeat(Fate()))

    def cache(spec: CacheSpec) -> HostTier:
        return HostTier(spec, lambda: next(chances))

    settings = ContinuousSettings()
    return model_free_engine(lambda limits: Continuous(settings, limits), cache=cache, **given)


def serve(engine: Engine, name: str, tokens: list[int] = PROMPT, **fields: Any) -> int:
    """Run a request to its end; return how many of its tokens came from the cache."""
    engine.submit(make_request(name, tokens, **fields))
    output = run_to_end(engine)[name]
    assert output.finish == "length"
    return output.cached_tokens


def turns(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_a_request_leaves_behind_comes_back_for_the_next_one(late: int) -> None:
    engine = tiered(late_steps=late, depth=max(1, late))
    assert [serve(engine, name) for name in "ab"] == [0, WHOLE]
    tier = tier_of(engine)
    assert (tier.exported, tier.loaded) == (7, 5)  # 21 prompt tokens and 7 outputs have pages
    assert engine.usage()[0].free == 64


@pytest.mark.parametrize(("tiers", "cached"), [(True, 0), (False, WHOLE)])
def test_a_reset_empties_tiers_unless_it_is_told_not_to(tiers: bool, cached: int) -> None:
    engine = tiered()
    serve(engine, "a")
    engine.reset_cache(tiers=tiers)
    assert serve(engine, "b") == cached


def test_an_idle_engine_goes_on_until_its_moves_have_ended() -> None:
    engine = tiered(late_steps=1)
    serve(engine, "a")
    assert tier_of(engine).exported == 7
    assert not engine.has_work


def test_it_looks_again_soon_while_only_moves_are_under_way() -> None:
    engine = tiered(late_steps=1, clock=VirtualClock())
    engine.submit(make_request("a", PROMPT, 4))
    while engine.states or engine.flying:
        engine.step()
    assert engine.has_work
    assert engine.wake_at == 0.002


@pytest.mark.parametrize(("found", "cached"), [(0, 0), (3, 12), (99, WHOLE)])
def test_what_a_tier_does_not_find_is_computed(found: int, cached: int) -> None:
    engine = tiered([Fate(turns=2, pages=found)])
    assert [serve(engine, name) for name in "ab"] == [0, cached]


def test_others_run_while_a_request_waits_for_a_transfer() -> None:
    engine = tiered([Fate(turns=6)], max_running=1, step_tokens=24)
    serve(engine, "a")
    engine.submit(make_request("b", PROMPT, 2))
    engine.submit(make_request("c", [9, 9, 9], 2))
    order = []
    while engine.has_work:
        order += [output.id for output in engine.step() if output.finish]
    assert order == ["c", "b"]


def test_it_sleeps_while_there_is_nothing_but_transfers() -> None:
    engine = tiered([Fate(turns=6)], clock=VirtualClock())
    serve(engine, "a")
    engine.submit(make_request("b", PROMPT, 2))
    turns(engine, 2)
    assert engine.wake_at == 1.0
    assert not engine.flying


def test_an_aborted_request_gives_up_its_transfer() -> None:
    engine = tiered([Fate(turns=1000)])
    serve(engine, "a")
    engine.submit(make_request("b", PROMPT, 2))
    turns(engine, 2)
    assert engine.usage()[0].pinned == 5
    engine.abort("b")
    assert engine.usage()[0].free == 64
    assert run_to_end(engine)["b"].finish == "abort"


def test_a_transfer_makes_room_for_those_who_run() -> None:
    engine = tiered([Fate(turns=9)], pages=12)
    serve(engine, "a", max_tokens=2)
    engine.submit(make_request("b", PROMPT, 2))
    engine.submit(make_request("c", [9] * 24, 20))
    results = run_to_end(engine)
    assert [results[name].finish for name in "bc"] == ["length", "length"]


def test_a_preempted_request_finds_its_own_pages() -> None:
    engine = tiered(pages=12, step_tokens=64)
    engine.submit(make_request("a", PROMPT, 16))
    engine.submit(make_request("b", [9] * 20, 16))
    results = run_to_end(engine)
    assert engine.stats.preemptions["no_space"] > 0
    assert tier_of(engine).loaded > 0
    assert [len(results[name].token_ids) for name in "ab"] == [16, 16]


def test_waiting_requests_are_announced_once_when_their_turn_is_near() -> None:
    engine = tiered(max_running=2)
    for name in "abcdef":
        engine.submit(make_request(name, [5, 6, 7], 4))
    turns(engine, 1)
    assert tier_of(engine).prefetched == [3, 4]  # two were admitted, and these are next
    run_to_end(engine)
    assert tier_of(engine).prefetched == [3, 4, 5, 6]


class Stubborn(NullExecutor):
    """Refuses moves while it is told to."""

    refuses = False

    def move(self, exports: Any, loads: Any) -> None:
        if self.refuses:
            raise CamshaftError("the device is full")
        super().move(exports, loads)


def test_a_load_that_fails_ends_the_requests_that_count_on_it_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = tiered(executor=(executor := Stubborn()))
    serve(engine, "a")
    executor.refuses = True
    engine.submit(make_request("b", PROMPT, 2))
    output = run_to_end(engine)["b"]
    assert output.message == "the step could not be launched: the device is full"
    executor.refuses = False
    assert serve(engine, "c") == WHOLE  # the tier has them as before
    assert "pages could not be moved: the device is full" in caplog.text


def test_an_export_that_fails_costs_nothing_but_the_page() -> None:
    engine = tiered(executor=(executor := Stubborn()))
    executor.refuses = True
    serve(engine, "a")
    executor.refuses = False
    assert [serve(engine, name) for name in "bc"] == [0, WHOLE]


def test_closing_waits_for_moves_and_closes_the_cache() -> None:
    engine = tiered(late_steps=1)
    engine.submit(make_request("a", PROMPT, 2))
    while engine.states:
        engine.step()
    engine.close()
    assert (tier_of(engine).exported, tier_of(engine).closed) == (5, True)


def test_a_cache_without_tiers_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(HostTier, "has_tiers", False)
    for name in ("take_moves", "prefetch", "moved"):
        monkeypatch.setattr(HostTier, name, forbidden)
    assert serve(tiered(), "a") == 0
