"""Requests under pressure on a CPU: few pages, aborts, preemptions; nothing is lost or kept."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.gpu.sanitize import small_case
from tests.pressure import check, press, requests, scarce_pages

MODELS = {"llama": LLAMA, "hybrid": HYBRID}
RUNNING = 24


@pytest.mark.parametrize("model", MODELS)
def test_a_pool_at_a_fifth_of_the_need_ends_every_request_and_gets_its_pages_back(
    model: str,
) -> None:
    work = requests(60 if model == "llama" else 25, seed=1)
    pages = scarce_pages(work, RUNNING, 4, share=0.2)
    changes: dict[str, dict[str, Any]] = {
        "attention": {"use": "sdpa" if model == "llama" else "reference"},
        "cache": {"memory": pool(pages, MODELS[model])},
        "scheduler": {"step_tokens": 64, "max_running": RUNNING},
        "engine": {"deterministic": False, "poison": True},
    }
    engine = compose_toy(MODELS[model], changes).engine
    check(engine, work, press(engine, work, seed=2))


def test_the_small_case_for_memory_checkers_runs_on_a_cpu_too() -> None:
    assert small_case({"hardware": {"use": "cpu", "threads": 1}}, "float32") > 5
