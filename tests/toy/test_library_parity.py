"""Models that run by the transformers library's code answer as they do there, batched or not."""

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
from tests.toy.test_transformers_parity import NEW, greedy

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 9,
    "head_dim": 8,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
"""Values narrower than keys, and a first layer unlike the second."""
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "starcoder2": {"sliding_window": 9},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.7},
    "cohere": {"logit_scale": 0.3},
    "glm": {"head_dim": 8},
    "gemma2": {**SLIDING, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": SLIDING,
    "gpt_oss": {**SLIDING, **EXPERTS},
    "mixtral": EXPERTS,
    "deepseek_v3": LATENT,
}


def library_model(name: str, fields: dict[str, Any]) -> Any:
    """Make a model of the library whose every weight matters."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    config = CONFIG_MAPPING[name](**{**SHAPE, **fields})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = kind(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, weight.shape[-1] ** -0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def prompts() -> list[list[int]]:
    chance = random.Random(8)
    return [[chance.randrange(256) for _ in range(length)] for length in (1, 12, 30)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model, and what the library says after each prompt up to the first near-tie."""
    model = library_model(request.param, FAMILIES[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    return folder, [greedy(model, prompt) for prompt in prompts()]


def compose_folder(folder: Path, changes: dict[str, Any]) -> Any:
    from camshaft.compose import compose
    from camshaft.recipe import parse_recipe
    from camshaft.registry import Registry

    mapping = toy_mapping(changes=changes)
    mapping["model"] = {"use": "transformers", "source": str(folder), "dtype": "float32"}
    mapping["engine"]["deterministic"] = False
    return compose(parse_recipe(mapping, Registry.discover())).engine


def answers(engine: Any, numbers: list[int]) -> dict[str, RequestOutput]:
    for number in numbers:
        engine.submit(make_request(f"p{number}", prompts()[number], NEW, ignore_eos=True))
    return run_to_end(engine)


def check(results: dict[str, RequestOutput], wanted: list[list[int]]) -> None:
    assert sum(len(one) for one in wanted) > 20, "near-ties would hide differences"
    for number, ids in enumerate(wanted):
        if f"p{number}" in results:
            assert results[f"p{number}"].token_ids[: len(ids)] == ids, number


def test_prompts_in_chunks_beside_each_other(family: Any) -> None:
    folder, wanted = family
    engine = compose_folder(folder, {"scheduler": {"step_tokens": 6}})
    check(answers(engine, [0, 1, 2]), wanted)


def test_a_prompt_alone_and_then_from_the_cache(family: Any) -> None:
    folder, wanted = family
    engine = compose_folder(folder, {})
    check(answers(engine, [2]), wanted)
    again = answers(engine, [2])
    check(again, wanted)
    assert again["p2"].cached_tokens == 28


OTHERWISE: dict[str, dict[str, Any]] = {
    "nano-batches": {"scheduler": {"use": "nano_batch", "minimum_tokens": 2}},
    "late by two": {"engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}}},
    "preempted": {"cache": {"memory": pool(12, {**SHAPE, "num_key_value_heads": 4})}},
}


@pytest.mark.parametrize("family", ["gpt_neox"], indirect=True)
@pytest.mark.parametrize("how", OTHERWISE)
def test_a_model_that_is_not_cut_into_layers_runs_however_a_recipe_wants_it(
    family: Any, how: str
) -> None:
    folder, wanted = family
    engine = compose_folder(folder, OTHERWISE[how])
    check(answers(engine, [0, 1, 2]), wanted)
    assert (engine.stats.preemptions["no_space"] > 0) == (how == "preempted")
    assert (engine.stats.nano_steps > 0) == (how == "nano-batches")
