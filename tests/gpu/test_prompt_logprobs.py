"""Logprobs of prompts on a CUDA device: in chunks and recorded pieces those of plain steps."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import LLAMA, compose_toy

pytestmark = pytest.mark.gpu

MODEL = {**LLAMA, "head_dim": 16, "hidden_size": 64}
PROMPTS = [[(step * place) % 256 for place in range(150)] for step in (3, 7, 3)]
CUDA: dict[str, dict[str, Any]] = {
    "hardware": {"use": "cuda"},
    "attention": {"use": "triton"},
    "cache": {"page_tokens": 16},
    "engine": {"deterministic": False},
}
PLAIN = {
    **CUDA,
    "attention": {"use": "reference"},
    "engine": {"deterministic": False, "graphs": False, "depth": 0},
}


def reads(
    changes: dict[str, dict[str, Any]], *overrides: str
) -> list[list[tuple[float, list[float]]]]:
    """Return logprob and alternatives of every prompt token; others decode beside them."""
    engine = compose_toy(MODEL, changes, overrides=("~hardware.threads", *overrides)).engine
    for number, prompt in enumerate(PROMPTS):
        engine.submit(make_request(f"d{number}", prompt[:9], 40, ignore_eos=True))
        asks = {"prompt_logprobs": 4, "ignore_eos": True}
        engine.submit(make_request(f"p{number}", prompt, 4, **asks))
    results = run_to_end(engine)
    return [
        [(one.logprob, one.top_logprobs) for one in results[f"p{number}"].prompt_logprobs]
        for number in range(len(PROMPTS))
    ]


@pytest.mark.parametrize("step_tokens", [64, 1024])
def test_they_are_those_of_plain_steps(step_tokens: int) -> None:
    here = reads(PLAIN)
    there = reads({**CUDA, "scheduler": {"step_tokens": step_tokens}}, "ops=[triton]")
    for expected, found in zip(here, there, strict=True):
        assert len(expected) == len(found) == 149
        for (one, tops), (other, others) in zip(expected, found, strict=True):
            assert other == pytest.approx(one, abs=2e-3)
            assert others == pytest.approx(tops, abs=2e-3)
