"""`slo` under everything at once: short pages, wanted times, aborts, steps in flight."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft import Registry
from camshaft.executor.null import NullExecutor
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import FittedSettings, SloSettings
from camshaft.plugins.scheduler.fitted import Fitted
from camshaft.plugins.scheduler.slo.scheduler import Slo
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine
from camshaft.testing.predictor import DEVICE, MODEL
from camshaft.testing.timed import TimedExecutor

REQUESTS = 50


def drawn_settings(chance: random.Random) -> SloSettings:
    choices: dict[str, list[Any]] = {
        "admission": ["refuse", "queue"],
        "aging_s": [0.01, 0.5, 30],
        "aging_every": [1, 3, 8],
        "preempt_at": [0, 0.5],
        "preemption": ["recompute", "off"],
        "tpot_burst": [1, 4],
        "share_prefixes": [True, False],
        "chunk_align": [1, 4],
    }
    return SloSettings.model_validate({name: chance.choice(of) for name, of in choices.items()})


def drawn_engine(chance: random.Random, step_tokens: int) -> Engine:
    clock, settings = VirtualClock(start=5.0), drawn_settings(chance)
    cache = Registry.discover().get("cache", chance.choice(["paged", "radix"]))
    return model_free_engine(
        lambda limits: Slo(settings, limits),
        cache=lambda spec: cache.load()(cache.settings(), spec),
        executor=TimedExecutor(NullExecutor(7), clock, lambda shape: 0.01 + 0.001 * shape.tokens),
        clock=clock,
        predictor=chance.choice([None, Fitted(FittedSettings(), DEVICE, MODEL)]),
        pages=chance.choice([12, 20, 60]),
        step_tokens=step_tokens,
        max_running=chance.choice([1, 2, 5]),
        depth=chance.choice([0, 1, 2]),
    )


def drawn_request(chance: random.Random, name: str) -> Request:
    begin = [chance.randint(1, 4)] * chance.randint(1, 8)
    prompt = begin + [chance.randint(5, 900) for _ in range(chance.randint(0, 30))]
    request = make_request(name, prompt, chance.randint(1, 12), ignore_eos=True)
    request.priority = chance.randint(-2, 3)
    request.ttft_slo_s = chance.choice([None, 0.001, 0.1, 0.5, 3.0])
    request.tpot_slo_s = chance.choice([None, 0.001, 0.012, 0.03, 0.2])
    return request


@pytest.mark.parametrize("step_tokens", [1, 4, 64])
@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_once_and_nothing_is_kept(seed: int, step_tokens: int) -> None:
    """With a token a step, one that waits for pages once kept the token from one that had them."""
    chance = random.Random(seed)
    engine = drawn_engine(chance, step_tokens)
    results: dict[str, RequestOutput] = {}
    for number in range(REQUESTS):
        engine.submit(drawn_request(chance, f"r{number}"))
        for _ in range(chance.randint(0, 4)):
            collect(engine.step(), results)
        if chance.random() < 0.15:
            engine.abort(f"r{chance.randint(0, number)}")
    for _ in range(10_000):
        collect(engine.step(), results)
    assert not engine.has_work
    assert len(results) == REQUESTS
    assert {one.finish for one in results.values()} <= {"length", "refused", "abort"}
    usage, scheduler = engine.usage()[0], engine.parts.scheduler
    assert (usage.in_use, usage.pinned) == (0, 0)
    assert isinstance(scheduler, Slo)
    assert not scheduler._running
    assert not scheduler._queue.turns
