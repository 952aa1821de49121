"""An engine on a CUDA device that sleeps, and a step of it that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.executor.step_trace import trace
from camshaft.executor.trace_files import TraceOrder, read_trace
from camshaft.plugins.lab.rerun import rerun, rerun_recipe
from camshaft.plugins.lab.subject import executor_of
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import LLAMA, toy_mapping

pytestmark = pytest.mark.gpu

POOL = 2**30


def composed(**changes: dict[str, Any]) -> Any:
    sections: dict[str, dict[str, Any]] = {
        "hardware": {"use": "cuda"},
        "attention": {"use": "triton"},
        "cache": {"page_tokens": 16, "memory": POOL},
        "engine": {"deterministic": False, "depth": 1, "debug": False},
    }
    sections |= changes
    mapping = toy_mapping({**LLAMA, "head_dim": 16, "hidden_size": 64}, sections)
    mapping["hardware"].pop("threads")
    return compose(parse_recipe(mapping, Registry.discover()))


def answers(engine: Any, name: str) -> list[list[int]]:
    for number in range(6):
        prompt = [(7 * number + place) % 250 for place in range(5 + 30 * number)]
        engine.submit(make_request(f"{name}{number}", prompt, 24, ignore_eos=True))
    return [one.token_ids for _, one in sorted(run_to_end(engine).items())]


def test_the_device_gets_the_pool_back_and_recorded_steps_find_the_new_one() -> None:
    import torch

    engine = composed().engine
    wanted = answers(engine, "a")
    awake = torch.cuda.mem_get_info()[0]
    assert engine.sleep() > 0.99 * POOL
    assert torch.cuda.mem_get_info()[0] - awake > 0.95 * POOL
    held = torch.empty(POOL // 2, dtype=torch.uint8, device="cuda")  # so that it comes elsewhere
    engine.wake()
    del held
    assert answers(engine, "b") == wanted
    assert answers(engine, "c") == wanted
    engine.close()


def test_a_recorded_step_runs_again_eagerly_with_the_same_tokens(tmp_path: Path) -> None:
    for number in (1, 6):
        folder = tmp_path / str(number)
        made = composed(cache={"page_tokens": 16, "memory": 16 * 2**20})
        made.engine.parts.executor = trace(
            made.engine.parts.executor,
            TraceOrder(str(folder), number),
            recipe=made.drawing.recipe.as_mapping(),
            recipe_name="toy",
            page_tokens=16,
        )
        answers(made.engine, "a")
        made.engine.close()
        head, arrays = read_trace(folder)
        again = compose(rerun_recipe(head, Registry.discover()))
        found = rerun(executor_of(again, "trace"), head, arrays)
        assert found.differing(head) == []
        again.engine.close()
