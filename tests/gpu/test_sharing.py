"""Requests with a common prefix on a CUDA device: the cascade changes nothing but the time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.request import RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import LLAMA, toy_mapping
from tests.near_ties import agreeing

pytestmark = pytest.mark.gpu

MODEL = {**LLAMA, "head_dim": 16, "hidden_size": 64}


def answers(graphs: bool, **attention: object) -> tuple[dict[str, RequestOutput], Any]:
    """Three families of requests, one of them too small to share, with lengths that differ."""
    changes: dict[str, Any] = {
        "attention": {"use": "triton", **attention},
        "cache": {"page_tokens": 16, "memory": "64MiB"},
        "engine": {"deterministic": False, "depth": 1, "graphs": graphs},
        "scheduler": {"max_running": 32, "step_tokens": 256},
    }
    mapping = toy_mapping(MODEL, changes)
    mapping["hardware"] = {"use": "cuda"}
    engine = compose(parse_recipe(mapping, Registry.discover())).engine
    chance = random.Random(3)
    families = [[chance.randrange(256) for _ in range(length)] for length in (300, 271, 290)]
    for number, family in enumerate(families):
        engine.submit(make_request(f"first{number}", family, 1))
    run_to_end(engine)
    for number in range(27):
        family = families[2 if number < 3 else number % 2]
        own = [chance.randrange(256) for _ in range(1 + number)]
        request = make_request(
            f"r{number}", [*family, *own], 20 + number, ignore_eos=True, logprobs=2
        )
        engine.submit(request)
    return run_to_end(engine), engine


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_answers_equal_those_without_a_cascade(graphs: bool) -> None:
    wanted, _ = answers(graphs, cascade=False)
    got, engine = answers(graphs, cascade_bytes=1)
    assert engine.parts.executor._sharing[0].searches > 0
    if graphs:
        recorded = engine.parts.executor.graphs._recorded
        assert any(sharing == (True,) for _, _, sharing, _ in recorded)
    told = {name: one for name, one in wanted.items() if one.logprobs}
    assert agreeing(told, got) > 300
