"""Every way in which a few requests can come and go while pages run out: nobody is stuck or lost.

A world is a pool that holds any one request and no two, the turns in which three requests come,
and the turn in which one of them is aborted, if any. All of them are played, with every invariant
of the engine checked after every turn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from camshaft.contracts.scheduler import Scheduler
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine
from tests.plugins.scheduler.configurations import CONFIGURATIONS, scheduler

NAMES = ("a", "b", "c")
LENGTHS = (((3, 5), (4, 4), (1, 7)), ((6, 2), (2, 6), (6, 2)))
"""Prompt and output tokens of the three requests; the last output takes no room."""

PAGES, PAGE_TOKENS, STEP_TOKENS, SLOTS = 4, 2, 5, 2
MOST_TURNS = 150
"""Three requests alone, one after the other, need less than 40."""


@dataclass(frozen=True, slots=True)
class World:
    """One course of events.

    Attributes:
        lengths: Of the requests.
        depth: Of the engine; results are as many steps late.
        turns: In which they come.
        abort: Who is aborted, and when.
    """

    lengths: tuple[tuple[int, int], ...]
    depth: int
    turns: tuple[int, ...]
    abort: tuple[str, int] | None


def worlds(gaps: int, turns: int) -> Iterator[World]:
    aborts = [None, *itertools.product(NAMES, range(turns))]
    for lengths, depth, second, third, abort in itertools.product(
        LENGTHS, (0, 1), range(gaps), range(gaps), aborts
    ):
        yield World(lengths, depth, (0, second, second + third), abort)


def play(
    world: World, make: functools.partial[Scheduler]
) -> tuple[Engine, dict[str, RequestOutput]]:
    engine = model_free_engine(
        make,
        pages=PAGES,
        page_tokens=PAGE_TOKENS,
        step_tokens=STEP_TOKENS,
        max_running=SLOTS,
        depth=world.depth,
        late_steps=world.depth,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )
    results: dict[str, RequestOutput] = {}
    for turn in range(MOST_TURNS):
        for name, lengths, at in zip(NAMES, world.lengths, world.turns, strict=True):
            if at == turn:
                prompt, outputs = lengths
                engine.submit(make_request(name, [5] * prompt, outputs, tenant=name))
        if world.abort is not None and world.abort[1] == turn:
            engine.abort(world.abort[0])
        collect(engine.step(), results)
        if turn > max(world.turns) and not engine.has_work:
            return engine, results
    raise AssertionError(f"{list(engine.states)} do not end in {world}")


def play_all(name: str, gaps: int, turns: int) -> int:
    preemptions = 0
    for world in worlds(gaps, turns):
        engine, results = play(world, functools.partial(scheduler, name))
        assert set(results) == set(NAMES), world
        for one, (_, outputs) in zip(NAMES, world.lengths, strict=True):
            ended = results[one]
            aborted = world.abort is not None and world.abort[0] == one
            assert ended.finish == "length" or (aborted and ended.finish == "abort"), world
            assert len(ended.token_ids) == outputs or ended.finish == "abort", world
        usage = engine.usage()[0]
        assert (usage.in_use, usage.pinned, engine.slots.in_use) == (0, 0, 0), world
        preemptions += engine.stats.preemptions["no_space"]
    return preemptions


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_course_of_events_leaves_anybody_stuck(name: str) -> None:
    assert play_all(name, gaps=2, turns=3) > 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_longer_course_of_events_leaves_anybody_stuck(name: str) -> None:
    assert play_all(name, gaps=7, turns=20) > 0
