"""A thousand requests under pressure on a CUDA device, with recorded decode steps."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.testing.toy import LLAMA, compose_toy, pool
from tests.pressure import check, press, requests, scarce_pages

pytestmark = pytest.mark.gpu

MODEL = {**LLAMA, "head_dim": 16, "hidden_size": 64}
RUNNING, PAGE = 64, 16


@pytest.mark.parametrize("poison", [False, True], ids=["as it is", "poisoned"])
def test_a_pool_at_a_fifth_of_the_need_ends_every_request_and_gets_its_pages_back(
    poison: bool,
) -> None:
    work = requests(200 if poison else 1000, seed=3)
    pages = scarce_pages(work, RUNNING, PAGE, share=0.2)
    changes: dict[str, dict[str, Any]] = {
        "hardware": {"use": "cuda"},
        "attention": {"use": "triton"},
        "cache": {"page_tokens": PAGE, "memory": pool(pages, MODEL, PAGE)},
        "scheduler": {"step_tokens": 256, "max_running": RUNNING},
        "engine": {"deterministic": False, "poison": poison},
    }
    engine = compose_toy(MODEL, changes, overrides=("~hardware.threads", "ops=[triton]")).engine
    check(engine, work, press(engine, work, seed=4))
    assert engine.parts.executor.graphs.replays > 50  # type: ignore[attr-defined]
