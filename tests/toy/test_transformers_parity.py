"""Greedy ids of tiny random models equal those of transformers, whatever the engine does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.request import RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import pool, toy_mapping
from tests.plugins.model.test_parity import reference_model

SHAPE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 9, "head_dim": 8},
}
NEW, NEAR_TIE = 16, 1e-4
MODES: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"scheduler": {"step_tokens": 6}},
    "preempted": {"cache": {"memory": pool(12, SHAPE), "prefix": False}},
    "late by one": {"engine": {"depth": 1, "executor": {"use": "late", "late_steps": 1}}},
    "late by two": {"engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}}},
}


def prompts() -> list[list[int]]:
    chance = random.Random(8)
    return [[chance.randrange(256) for _ in range(length)] for length in (1, 5, 12, 21, 30)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model, and what transformers says after each prompt up to the first near-tie."""
    model = reference_model(request.param, **SHAPE, **FAMILIES[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    return folder, [greedy(model, prompt) for prompt in prompts()]


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < NEAR_TIE:
            break
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :]


def compose_folder(folder: Path, changes: dict[str, Any]) -> Any:
    from camshaft.compose import compose
    from camshaft.recipe import parse_recipe
    from camshaft.registry import Registry

    mapping = toy_mapping(changes=changes)
    mapping["model"] = {"source": str(folder), "dtype": "float32"}
    return compose(parse_recipe(mapping, Registry.discover())).engine


def answers(engine: Any) -> dict[str, RequestOutput]:
    for number, prompt in enumerate(prompts()):
        engine.submit(make_request(f"p{number}", prompt, NEW, ignore_eos=True))
    return run_to_end(engine)


def check(results: dict[str, RequestOutput], wanted: list[list[int]]) -> None:
    assert sum(len(one) for one in wanted) > 40, "near-ties would hide differences"
    for number, ids in enumerate(wanted):
        assert results[f"p{number}"].token_ids[: len(ids)] == ids, number


@pytest.mark.parametrize("mode", MODES)
def test_all_prompts_together(family: Any, mode: str) -> None:
    folder, wanted = family
    engine = compose_folder(folder, MODES[mode])
    check(answers(engine), wanted)
    assert (engine.stats.preemptions["no_space"] > 0) == (mode == "preempted")


def test_each_prompt_alone_and_then_from_the_cache(family: Any) -> None:
    folder, wanted = family
    engine = compose_folder(folder, {})
    for turn in range(2):
        results: dict[str, RequestOutput] = {}
        for number, prompt in enumerate(prompts()):
            engine.submit(make_request(f"p{number}", prompt, NEW, ignore_eos=True))
            results |= run_to_end(engine)
        check(results, wanted)
        assert (results["p4"].cached_tokens > 0) == bool(turn)
