"""Vectors of prompts on a CUDA device: in chunks and recorded pieces those of plain steps."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.request import POOLINGS
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy
from tests.gpu.test_prompt_logprobs import CUDA, MODEL, PLAIN, PROMPTS

pytestmark = pytest.mark.gpu

KINDS = POOLINGS[1:]
BERT = {
    "model_type": "bert",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}
WHOLE = {"prefix": False, "memory": "16MiB"}


def vectors(
    model: dict[str, Any], changes: dict[str, dict[str, Any]], *overrides: str, decodes: bool = True
) -> dict[str, list[float]]:
    """Return the vector of every prompt by each pooling; others decode beside them."""
    engine = compose_toy(model, changes, overrides=("~hardware.threads", *overrides)).engine
    for number, prompt in enumerate([*PROMPTS, [7]]):
        if decodes:
            engine.submit(make_request(f"d{number}", prompt[:9], 40, ignore_eos=True))
        for kind in KINDS:
            engine.submit(make_request(f"{kind}{number}", prompt, 1, pooling=kind))
    results = run_to_end(engine)
    assert all(len(one.token_ids) == 40 for name, one in results.items() if name.startswith("d"))
    engine.close()
    return {name: one.embedding for name, one in results.items() if one.embedding}


@pytest.mark.parametrize("step_tokens", [64, 1024])
def test_they_are_those_of_plain_steps(step_tokens: int) -> None:
    here = vectors(MODEL, PLAIN)
    there = vectors(MODEL, {**CUDA, "scheduler": {"step_tokens": step_tokens}}, "ops=[triton]")
    assert len(here) == 4 * len(KINDS)
    for name, vector in here.items():
        assert there[name] == pytest.approx(vector, abs=2e-3), name


def test_an_encoder_runs_there_too() -> None:
    steps: dict[str, Any] = {"scheduler": {"step_tokens": 256}, "cache": WHOLE}
    plain = vectors(BERT, {**PLAIN, **steps}, decodes=False)
    found = vectors(BERT, {**CUDA, "attention": {"use": "sdpa"}, **steps}, decodes=False)
    assert len(plain) == 4 * len(KINDS)
    for name, vector in plain.items():
        assert found[name] == pytest.approx(vector, abs=2e-3), name
