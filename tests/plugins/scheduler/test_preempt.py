"""Swap or recompute: whichever is predicted to take less time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.contracts.cache import SwapCost
from camshaft.contracts.predictor import StepShape
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.plugins.scheduler.components import ContinuousSettings, SloSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.plugins.scheduler.preempt import preempt
from camshaft.plugins.scheduler.slo.scheduler import Slo

REQUEST: Any = SimpleNamespace(uid=1, arrival=1.0, priority=0, computed=300)
OTHER: Any = SimpleNamespace(uid=2, arrival=2.0, priority=0, computed=300)


def view(cost: SwapCost | None, token_s: float = 0.001) -> Any:
    """Two decode, and a step takes so long for each token."""
    return SimpleNamespace(
        one_pending=[REQUEST, OTHER],
        running=[REQUEST, OTHER],
        waiting=[],
        shape=lambda decodes: StepShape(len(decodes), len(decodes), len(decodes), 600, 2),
        predict=lambda shape: 0.01 + token_s * shape.tokens,
        swap_cost=lambda request: cost,
    )


@pytest.mark.parametrize(
    ("cost", "mode"),
    [
        (SwapCost(tokens=20, seconds=0.019), "swap"),
        (SwapCost(tokens=20, seconds=0.021), "recompute"),
        (SwapCost(tokens=20, seconds=0.0), "swap"),  # nothing is known of the tier yet
        (SwapCost(tokens=0, seconds=0.0), "recompute"),  # the tiers have all of it
        (None, "recompute"),
    ],
)
def test_the_cheaper_way_is_taken(cost: SwapCost | None, mode: str) -> None:
    assert preempt(view(cost), REQUEST, "cheaper") == (REQUEST, mode, "no_space")


def test_without_a_predictor_the_cheaper_way_is_to_compute() -> None:
    known_only = view(SwapCost(20, 0.0), token_s=0.0)
    assert preempt(known_only, REQUEST, "cheaper") == (REQUEST, "recompute", "no_space")


def test_a_setting_may_demand_one_way() -> None:
    dear = view(SwapCost(20, 9.0))
    assert preempt(dear, REQUEST, "swap", cause="urgent") == (REQUEST, "swap", "urgent")
    assert preempt(view(SwapCost(20, 0.0)), REQUEST, "recompute") == (
        REQUEST,
        "recompute",
        "no_space",
    )
    assert preempt(dear, None, "swap") is None


@pytest.mark.parametrize("seconds", [0.0, 9.0])
def test_schedulers_weigh_it_when_pages_run_out(seconds: float) -> None:
    limits, mode = SchedulerLimits(8, 2), "recompute" if seconds else "swap"
    need: Any = SimpleNamespace(pool=0, short=1)
    for one in (Continuous(ContinuousSettings(), limits), Slo(SloSettings(), limits)):
        victim = one.victim(view(SwapCost(20, seconds)), REQUEST, need)
        assert victim == (OTHER, mode, "no_space")


def test_those_that_want_swap_need_a_cache_that_has_it() -> None:
    settings = ContinuousSettings(preemption="swap")
    assert Continuous.supports(settings, predicts=False) == []
    assert Continuous.supports(settings, predicts=False, no_swap="there is no tier") == [
        "`preemption: swap`: there is no tier"
    ]
    cheaper = SloSettings(tpot_s=0.1)
    assert Slo.supports(cheaper, predicts=True, no_swap="there is no tier") == []
