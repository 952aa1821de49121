"""Pages that were in the host's memory give the same bits, also while they are still on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from camshaft.contracts.moves import Moved, PageMove
from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.host_tier import Fate, HostTier
from camshaft.testing.steps import StepDriver
from tests.gpu.test_invariance import engine_of
from tests.preempting import BOTH, Preempting

pytestmark = pytest.mark.gpu

PAGE = 64


def asked() -> Iterator[Request]:
    """Yield prompts with few beginnings and different ends."""
    chance = random.Random(5)
    starts = [[chance.randrange(32000) for _ in range(1024)] for _ in range(3)]
    for number in range(24):
        length, own = chance.choice([256, 640, 1024]), chance.choice([1, 17, 130])
        tail = [chance.randrange(32000) for _ in range(own)]
        prompt = starts[number % 3][:length] + tail
        yield make_request(f"r{number}", prompt, 12, ignore_eos=True)


def answers(engine: Engine) -> dict[str, list[int]]:
    """Submit one request every few turns, and return all answers."""
    outputs: dict[str, RequestOutput] = {}
    waiting, turns = list(asked()), 0
    while waiting or engine.has_work:
        if waiting and turns % 3 == 0:
            engine.submit(waiting.pop(0))
        collect(engine.step(), outputs)
        turns += 1
    return {name: list(one.token_ids) for name, one in outputs.items()}


def test_answers_do_not_notice_where_their_pages_were() -> None:
    parts = engine_of(cache={"prefix": False}, engine={"poison": True}).parts
    wanted = answers(Engine(parts))
    chance = random.Random(6)
    spec = replace(parts.cache.spec, prefix=True, tray=parts.executor.tray)
    tier = HostTier(spec, lambda: Fate(chance.randint(1, 4), chance.choice([99, 99, 3])))
    assert answers(Engine(replace(parts, cache=tier))) == wanted
    assert tier.loaded > 50


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_answers_do_not_notice_how_requests_were_preempted(depth: int) -> None:
    """By swap and by recompute, with pages for a few of them; pages that change hands are NaN."""
    wanted = answers(engine_of(cache={"prefix": False}))
    tiers = {"use": "tiered", "load": "always", "memory": "64MiB", "host_memory": "1GiB"}
    parts = engine_of(cache=tiers, engine={"poison": True, "depth": depth}).parts
    engine = Engine(replace(parts, scheduler=Preempting(parts.scheduler, BOTH, seed=depth)))
    assert answers(engine) == wanted
    assert engine.stats.swaps["chance"] > 3
    assert engine.cache_counters()["swaps_back_whole"] > 0
    engine.close()


@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "pieces"])
def test_a_step_waits_for_pages_that_are_on_the_way(recorded: bool) -> None:
    """Many pages are loaded behind a long queue of copies, and read by the very next step."""
    prompt = [7 * place % 31999 for place in range(PAGE * 32 + 1)]
    engine = engine_of(engine={"graphs": recorded})
    engine.submit(make_request("a", prompt, 12, ignore_eos=True))
    wanted = list(run_to_end(engine)["a"].token_ids)
    executor = engine.parts.executor
    drive, tray = StepDriver(executor), executor.tray(0, 32)
    drive.launch((drive.open(prompt, 0, range(1, 40)), len(prompt)))
    executor.move([PageMove(1, 0, tuple(range(1, 33)), tray)], [])
    drive.launch((drive.open(prompt[::-1], 1, range(1, 40)), len(prompt)))  # overwrites them
    ended: list[Moved] = []
    while not ended:
        ended = executor.moved()
    pages = tuple(range(101, 133))
    executor.move([], [PageMove(2 + turn, 0, pages, tray) for turn in range(60)])
    again = drive.open(prompt, 2, [*pages, *range(141, 148)], cached=PAGE * 32, used=32)
    drive.launch((again, 1))
    assert drive.decode(again, 11) == wanted
