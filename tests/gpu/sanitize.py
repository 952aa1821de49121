"""A small case for memory checkers: prompts, recorded decode steps, choices, shared pages.

Run: compute-sanitizer --tool memcheck python -m tests.gpu.sanitize
"""

from __future__ import annotations

import sys
from typing import Any

from camshaft.compose import compose
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.engines import run_to_end
from camshaft.testing.toy import LLAMA, toy_mapping
from tests.pressure import requests

MODEL = {**LLAMA, "head_dim": 64, "hidden_size": 64}
CUDA: dict[str, dict[str, Any]] = {
    "hardware": {"use": "cuda"},
    "attention": {"use": "triton"},
}
COUNT = 12


def small_case(device: dict[str, dict[str, Any]], dtype: str) -> int:
    """Run a dozen requests through a toy; return its steps.

    Args:
        device: Sections of the recipe that choose it.
        dtype: Of the model.
    """
    mapping = toy_mapping(MODEL, {"cache": {"page_tokens": 16, "memory": "1MiB"}})
    mapping["engine"] = {"debug": True}
    mapping |= {"attention": {"use": "sdpa"}, **device}
    mapping["model"]["dtype"] = dtype
    if device == CUDA:
        mapping["ops"] = ["triton"]
    engine = compose(parse_recipe(mapping, Registry.discover())).engine
    for request in requests(COUNT, seed=6):
        engine.submit(request)
    results = run_to_end(engine)
    assert {one.finish for one in results.values()} == {"length"}, results
    assert len(results) == COUNT
    assert engine.usage()[0].in_use == 0
    steps = engine.stats.steps
    if device == CUDA:
        assert engine.parts.executor.graphs.replays > 0, "no decode step was recorded"  # type: ignore[attr-defined]
    engine.close()
    return steps


def main() -> None:
    """Run it in both precisions."""
    for dtype in ("float32", "bfloat16"):
        sys.stdout.write(f"{dtype}: {small_case(CUDA, dtype)} steps\n")
    sys.stdout.write("OK\n")


if __name__ == "__main__":
    main()
