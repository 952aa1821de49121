"""Parts of a step in streams of their own on a CUDA device: the tokens of whole steps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.toy import LLAMA, toy_mapping
from tests.near_ties import agreeing

pytestmark = pytest.mark.gpu

SIZES = {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}
MODEL = {**LLAMA, **SIZES, "max_position_embeddings": 1024}
CUTS: dict[str, dict[str, Any]] = {
    "halves": {"use": "nano_batch", "minimum_tokens": 2},
    "thirds": {"use": "nano_batch", "minimum_tokens": 2, "shares": [1, 1, 1]},
    "phases": {"use": "nano_batch", "minimum_tokens": 2, "by": "phase"},
}


def engine_of(scheduler: dict[str, Any], **engine: object) -> Any:
    changes: dict[str, Any] = {
        "attention": {"use": "triton"},
        "cache": {"page_tokens": 16, "memory": "64MiB"},
        "engine": {"deterministic": False, "depth": 1, **engine},
        "scheduler": {"max_running": 32, "step_tokens": 256, **scheduler},
    }
    mapping = toy_mapping(MODEL, changes)
    mapping["hardware"] = {"use": "cuda"}
    return compose(parse_recipe(mapping, Registry.discover())).engine


def answers(engine: Any) -> dict[str, RequestOutput]:
    """Prompts of all lengths that come while others decode; half of them begin alike."""
    chance = random.Random(4)
    common = [chance.randrange(256) for _ in range(300)]
    results: dict[str, RequestOutput] = {}
    for number in range(30):
        own = [chance.randrange(256) for _ in range(chance.choice([1, 17, 120, 400]))]
        prompt = [*common, *own] if number % 2 else own
        engine.submit(make_request(f"r{number}", prompt, 24, ignore_eos=True, logprobs=2))
        collect(engine.step(), results)
    for name, one in run_to_end(engine).items():
        whole = results.setdefault(name, RequestOutput(id=name))
        whole.token_ids = whole.token_ids + one.token_ids
        whole.logprobs = whole.logprobs + one.logprobs
    return results


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_answers_equal_those_of_whole_steps(graphs: bool) -> None:
    wanted = answers(engine_of({}, graphs=graphs))
    for cut in CUTS.values():
        engine = engine_of(cut, graphs=graphs)
        got = answers(engine)
        executor = engine.parts.executor
        assert executor.side_by_side.runs == engine.stats.nano_steps > 20
        if graphs and cut.get("by") == "phase":
            assert executor.side_by_side._graphs[1].replays > 10
        assert agreeing(wanted, got) > 300
