"""Deadlines on a toy model, in virtual time: steps take what they would on a slow device."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.contracts.predictor import StepShape
from camshaft.loop.clock import VirtualClock
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request
from camshaft.testing.timed import TimedExecutor
from camshaft.testing.toy import LLAMA, toy_recipe

SLOTS = {"step_tokens": 64, "max_running": 6}
URGENT = [f"urgent {number}" for number in range(8)]


def law(shape: StepShape) -> float:
    return 0.010 + 0.002 * shape.tokens


def rush(scheduler: dict[str, Any]) -> tuple[dict[str, float], dict[str, RequestOutput]]:
    """Forty requests at once, and an urgent one every second that wants its answer within 1.5 s.

    Returns:
        Seconds to the first token of the urgent ones, and all results.
    """
    clock = VirtualClock(start=100.0)
    engine = compose(toy_recipe(LLAMA, {"scheduler": {**scheduler, **SLOTS}}), clock=clock).engine
    engine.parts.executor = TimedExecutor(engine.parts.executor, clock, law)
    for number in range(40):
        prompt = [(number * 7 + place) % 250 for place in range(60)]
        engine.submit(make_request(f"low {number}", prompt, 25, priority=1, ignore_eos=True))
    results: dict[str, RequestOutput] = {}
    first: dict[str, float] = {}
    coming = list(enumerate(URGENT))
    while engine.has_work:
        while coming and clock.now() >= 101.0 + coming[0][0]:
            number, name = coming.pop(0)
            prompt = [(number * 11 + place) % 240 for place in range(40)]
            request = make_request(name, prompt, 5, arrival=101.0 + number, ignore_eos=True)
            request.ttft_slo_s = 1.5
            engine.submit(request)
        outputs = engine.step()
        collect(outputs, results)
        for one in outputs:
            if one.id in URGENT and one.token_ids:
                first.setdefault(one.id, clock.now() - 101.0 - URGENT.index(one.id))
    engine.close()
    return first, results


@pytest.fixture(scope="module")
def answers() -> dict[str, RequestOutput]:
    first, results = rush({"use": "continuous"})
    assert sorted(first) == URGENT
    assert max(first.values()) > 1.5
    return results


def test_urgent_requests_are_in_time_where_first_come_first_served_is_late(
    answers: dict[str, RequestOutput],
) -> None:
    first, results = rush({"use": "slo", "predictor": "fitted"})
    assert sorted(first) == URGENT
    assert max(first.values()) < 1.5
    assert {one.finish for one in results.values()} == {"length"}
    # and whoever went first or gave way, nobody's answer is another one for it
    assert {name: one.token_ids for name, one in results.items()} == {
        name: one.token_ids for name, one in answers.items()
    }
