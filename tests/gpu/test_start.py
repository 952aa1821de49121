"""What a recipe compiles on a card, it compiles before it is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.startup import RECIPES, run_child

pytestmark = pytest.mark.gpu

SMALL = [
    "model.config.num_hidden_layers=4",
    "model.max_context=8192",
    "cache.memory=2GiB",
    "scheduler.step_tokens=4096",
    "scheduler.max_running=64",
]


@pytest.mark.parametrize("attention", ["", "attention=triton"], ids=["cudnn", "triton"])
def test_no_kernel_is_compiled_after_a_recipe_is_ready(tmp_path: Path, attention: str) -> None:
    changes = [*SMALL, attention] if attention else SMALL
    report = run_child(RECIPES / "qwen3-0.6b.yaml", changes, str(tmp_path))
    assert report["compiled_before_ready"] > 20
    assert report["compiled_after_ready"] == []
