"""In deterministic mode a CUDA device gives the same bits whatever happens around a request."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import toy_mapping

pytestmark = pytest.mark.gpu

VOCAB = 32000
MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
LENGTHS = (1, 17, 64, 129, 700, 3000)
OUTPUTS = 24


@functools.cache
def prompt(seed: int, length: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(VOCAB) for _ in range(length))


def asked(**params: Any) -> Iterator[Request]:
    """Yield the requests whose answers are compared: every other one draws its tokens."""
    for number, length in enumerate(LENGTHS):
        own = {"max_tokens": OUTPUTS, "ignore_eos": True, **params}
        if number % 2:
            own |= {"temperature": 0.9, "top_p": 0.95, "seed": number}
        yield make_request(f"r{number}", prompt(number, length), **own)


def engine_of(**changes: dict[str, Any]) -> Any:
    merged: dict[str, dict[str, Any]] = {
        "attention": {"use": "invariant"},
        "cache": {"page_tokens": 64, "memory": "2GiB"},
        "scheduler": {"step_tokens": 8192, "max_running": 128},
        "engine": {"deterministic": True, "depth": 1, "debug": False, "warm_up": "off"},
    }
    for section, fields in changes.items():
        merged[section] = {**merged[section], **fields}
    mapping = toy_mapping(MODEL, merged)
    mapping["model"]["dtype"] = "bfloat16"
    mapping["hardware"] = {"use": "cuda"}
    mapping["ops"] = ["triton"]
    return compose(parse_recipe(mapping, Registry.discover())).engine


def noise(engine: Any, count: int) -> None:
    """Submit other requests, prompts and answers of many lengths."""
    chance = random.Random(count)
    for number in range(count):
        length, outputs = chance.randint(1, 400), chance.randint(1, 60)
        params = {"max_tokens": outputs, "ignore_eos": True}
        engine.submit(make_request(f"n{number}", prompt(1000 + number, length), **params))


@pytest.fixture(scope="module")
def alone() -> dict[str, RequestOutput]:
    """Each request by itself, cold, without graphs: what every other run must equal."""
    engine = engine_of(engine={"graphs": False}, cache={"prefix": False})
    results: dict[str, RequestOutput] = {}
    for request in asked(logprobs=2):
        engine.submit(request)
        results |= run_to_end(engine)
    engine.close()
    return results


def check(got: dict[str, RequestOutput], wanted: dict[str, RequestOutput]) -> None:
    for name, one in wanted.items():
        assert got[name].token_ids == one.token_ids, name
        assert got[name].logprobs == one.logprobs, name


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("step_tokens", [8192, 512, 37])
def test_among_64_others_in_chunks_of_any_size(
    alone: dict[str, RequestOutput], step_tokens: int, graphs: bool
) -> None:
    engine = engine_of(engine={"graphs": graphs}, scheduler={"step_tokens": step_tokens})
    noise(engine, 64 if step_tokens > 37 else 8)
    for request in asked(logprobs=2):
        engine.submit(request)
    check(run_to_end(engine), alone)
    replays = engine.parts.executor.graphs.replays if graphs else 0
    engine.close()
    assert (replays > 5) == graphs


def test_with_prefix_hits(alone: dict[str, RequestOutput]) -> None:
    engine = engine_of()
    for _ in range(2):
        for request in asked(logprobs=2):
            engine.submit(request)
        check(run_to_end(engine), alone)
    assert engine.stats.cached_tokens >= sum(LENGTHS) - 64 * len(LENGTHS)
    engine.close()


def test_under_preemption(alone: dict[str, RequestOutput]) -> None:
    engine = engine_of(cache={"memory": "80MiB"}, scheduler={"step_tokens": 1024})
    noise(engine, 40)
    for request in asked(logprobs=2):
        engine.submit(request)
    check(run_to_end(engine), alone)
    assert engine.stats.preemptions["no_space"] > 0
    engine.close()


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("cut", [{"shares": [1, 1]}, {"shares": [2, 1, 1]}, {"by": "phase"}])
def test_in_nano_batches_side_by_side(
    alone: dict[str, RequestOutput], cut: dict[str, Any], graphs: bool
) -> None:
    nano = {"use": "nano_batch", "minimum_tokens": 8, "step_tokens": 1024, **cut}
    engine = engine_of(engine={"graphs": graphs}, scheduler=nano, cache={"memory": "160MiB"})
    noise(engine, 64)
    for request in asked(logprobs=2):
        engine.submit(request)
    check(run_to_end(engine), alone)
    assert engine.parts.executor.side_by_side.runs > 10
    engine.close()


def test_when_the_choice_is_part_of_the_graph(alone: dict[str, RequestOutput]) -> None:
    engine = engine_of()
    noise(engine, 64)
    for request in asked():
        engine.submit(request)
    got = run_to_end(engine)
    engine.close()
    assert [got[name].token_ids for name in alone] == [one.token_ids for one in alone.values()]
