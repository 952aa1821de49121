"""However steps are cut into nano-batches, an answer is the same to the bit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.testing.toy import HYBRID, compose_toy, pool
from tests.pressure import staggered
from tests.toy.test_invariance import fresh, same

CUTS: dict[str, dict[str, Any]] = {
    "halves": {"shares": [0.5, 0.5]},
    "thirds": {"shares": [1, 1, 1], "share_prefixes": False},
    "phases": {"by": "phase"},
}


@pytest.mark.parametrize(("cut", "late"), [("halves", 0), ("thirds", 2), ("phases", 2)])
def test_with_staggered_arrivals_aborts_and_scarce_pages(cut: str, late: int) -> None:
    chance = random.Random(len(cut) + late)
    executor = {"use": "late", "late_steps": late} if late else {}
    engine = compose_toy(
        HYBRID,
        {
            "engine": {"depth": late, "poison": True, **({"executor": executor} if late else {})},
            "cache": {"memory": pool(45, HYBRID)},
            "scheduler": {"use": "nano_batch", "minimum_tokens": 2, **CUTS[cut]},
        },
    ).engine
    same(staggered(engine, fresh(), chance), "hybrid")
    assert engine.stats.nano_steps > 10
    assert engine.stats.preemptions["no_space"] > 0
    for usage in engine.usage():
        assert (usage.in_use, usage.pinned) == (0, 0)
