"""Every way in which a few requests can come and go while pages run out: nobody is stuck or lost.

A world is a pool that holds any one request and no two, the turns in which three requests come,
and the turn in which one of them is aborted, if any. All of them are played, with every invariant
of the engine checked after every turn. To abort a request that has not come or has ended changes
nothing, so of two worlds that differ in that alone only one is played.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Course:
    """What happened in a world.

    Attributes:
        engine: At the end.
        results: Of each request.
        ends: Turn in which each of them ended.
    """

    engine: Engine
    results: dict[str, RequestOutput]
    ends: dict[str, int]


def arrivals(make: functools.partial[Scheduler], most_gap: int) -> Iterator[tuple[World, Course]]:
    """Play the ways in which three requests can come.

    When all before it have ended, a request can come a turn later as well; of these one is enough.
    """
    for lengths, depth in itertools.product(LENGTHS, (0, 1)):
        for second in range(most_gap + 1):
            ends = dict.fromkeys(NAMES, MOST_TURNS)
            for third in range(second, second + most_gap + 1):
                world = World(lengths, depth, (0, second, third), None)
                course = play(world, make)
                yield world, course
                ends = course.ends
                if third > max(ends["a"], ends["b"]):
                    break
            if second > ends["a"]:
                break


def aborts(world: World, ends: dict[str, int], most_turns: int) -> Iterator[World]:
    """Yield this world with each abort that meets a request, up to the turn in which it ends."""
    for name, turn in zip(NAMES, world.turns, strict=True):
        for at in range(turn, min(ends[name] + 1, most_turns)):
            yield replace(world, abort=(name, at))


def play(world: World, make: functools.partial[Scheduler]) -> Course:
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
    ends: dict[str, int] = {}
    for turn in range(MOST_TURNS):
        for name, lengths, at in zip(NAMES, world.lengths, world.turns, strict=True):
            if at == turn:
                prompt, outputs = lengths
                engine.submit(make_request(name, [5] * prompt, outputs, tenant=name))
        if world.abort is not None and world.abort[1] == turn:
            engine.abort(world.abort[0])
        collect(engine.step(), results)
        for name, one in results.items():
            if one.finish is not None:
                ends.setdefault(name, turn)
        if turn > max(world.turns) and not engine.has_work:
            return Course(engine, results, ends)
    raise AssertionError(f"{list(engine.states)} do not end in {world}")


def check(world: World, course: Course) -> None:
    assert set(course.results) == set(NAMES), world
    for one, (_, outputs) in zip(NAMES, world.lengths, strict=True):
        ended = course.results[one]
        aborted = world.abort is not None and world.abort[0] == one
        assert ended.finish == "length" or (aborted and ended.finish == "abort"), world
        assert len(ended.token_ids) == outputs or ended.finish == "abort", world
    engine = course.engine
    usage = engine.usage()[0]
    assert (usage.in_use, usage.pinned, engine.slots.in_use) == (0, 0, 0), world


def play_all(name: str, most_gap: int, abort_turns: int = MOST_TURNS) -> tuple[int, int]:
    """Play worlds; return how many there were, and the preemptions in them.

    Args:
        name: Of the scheduler's configuration.
        most_gap: Most turns between two arrivals.
        abort_turns: Turns in which one may be aborted.
    """
    make = functools.partial(scheduler, name)
    played = preemptions = 0
    for world, undisturbed in arrivals(make, most_gap):
        for one in (world, *aborts(world, undisturbed.ends, abort_turns)):
            course = play(one, make) if one.abort else undisturbed
            check(one, course)
            played += 1
            preemptions += course.engine.stats.preemptions["no_space"]
    return played, preemptions


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_course_of_events_leaves_anybody_stuck(name: str) -> None:
    played, preemptions = play_all(name, most_gap=1, abort_turns=3)
    assert played > 100
    assert preemptions > 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_none_of_all_courses_of_events_leaves_anybody_stuck(name: str) -> None:
    """Until all three run one after the other."""
    played, preemptions = play_all(name, most_gap=MOST_TURNS)
    print(f"{name}: {played} worlds, {preemptions} preemptions")  # noqa: T201 - with pytest -s
    assert played > 4000
    assert preemptions > 0
