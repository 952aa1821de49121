"""Logits of tiny random models equal those of transformers, or of a plain reference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.checkpoint import Checkpoint, ModelConfig, open_checkpoint
from camshaft.checkpoint import Rope as RopeConfig
from camshaft.contracts.model import Model, ModelParts
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.model.rope import rope_tables
from camshaft.plugins.quant.components import NoneSettings
from camshaft.plugins.quant.none import Unquantized
from camshaft.testing.model import OPS, Inventing, random_weights, run

TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = [(7 * at + 3) % 96 for at in range(40)]


def reference_model(name: str, **fields: Any) -> Any:
    """Make a transformers model whose every weight matters."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**TINY, **fields})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, weight.shape[1] ** -0.5)
            else:  # a norm's weight lies around 1, a bias around 0
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def reference_logits(model: Any, tokens: list[int] = TOKENS) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.float()


def built(checkpoint: Checkpoint, *, deterministic: bool = False) -> Model:
    config = checkpoint.config
    parts = ModelParts(
        quantizer=Unquantized(NoneSettings()),
        ops=OPS,
        dtype="float32",
        device="cpu",
        deterministic=deterministic,
        max_context=config.context,
        layers=(0, config.layers),
    )
    return DecoderFamily(DecoderSettings()).build(checkpoint, parts)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("Llama", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
        ("Mistral", {"sliding_window": 7}),
        ("Mistral", {"sliding_window": None, "num_key_value_heads": 6}),
        ("Qwen2", {}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
        ("Qwen3", {"attention_bias": True}),
    ],
)
def test_logits_are_those_of_transformers(
    name: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    reference = reference_model(name, **fields)
    reference.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    expected = reference_logits(reference)
    for deterministic in (False, True):
        found = run(built(checkpoint, deterministic=deterministic), TOKENS)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.5  # so that 1e-4 says something


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {
            "rope_type": "linear",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "partial_rotary_factor": 0.5,
        },
        {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.5,
        },
    ],
    ids=lambda rope: "-".join(f"{value}" for value in rope.values()),
)
def test_stretched_positions_are_those_of_transformers(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**{**TINY, "head_dim": 32, "rope_parameters": rope})
    config.save_pretrained(tmp_path)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(128)[None])
    tables = rope_tables(open_checkpoint(f"config:{tmp_path}").config, 128, "cpu")
    half = cos.shape[-1] // 2
    torch.testing.assert_close(tables.cos, cos[0, :, :half], rtol=0, atol=2e-5)
    torch.testing.assert_close(tables.sin, sin[0, :, :half], rtol=0, atol=2e-5)


def test_divisors_slow_each_frequency_by_its_own() -> None:
    config = ModelConfig("llama", 8, 8, 1, 2, 1, 4, 8, 64)
    divided = replace(config, rope=RopeConfig(kind="divisors", divisors=(1.0, 4.0)))
    plain, slowed = rope_tables(config, 64, "cpu"), rope_tables(divided, 64, "cpu")
    assert torch.equal(slowed.cos[:, 0], plain.cos[:, 0])
    torch.testing.assert_close(slowed.sin[::4, 1], plain.sin[:16, 1])


HYBRID = ModelConfig(
    architecture="decoder",
    hidden=24,
    intermediate=40,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=50,
    context=64,
    rope=RopeConfig(theta=500.0, rotary_share=0.5),
    attention_bias=True,
    qk_norm=True,
    layer_types=("sliding", "full", "sliding", "full"),
    sliding_window=5,
    logit_softcap=3.0,
    attention_softcap=2.0,
    attention_sinks=True,
)


def plain_hybrid(config: ModelConfig, w: dict[str, torch.Tensor], tokens: list[int]) -> Any:
    """Compute the hybrid's logits in float64, one token and one head at a time."""

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight

    def rotate(x: torch.Tensor, place: int) -> torch.Tensor:
        result, half = x.clone(), int(config.head_dim * config.rope.rotary_share) // 2
        for i in range(half):
            angle = place * config.rope.theta ** (-i / half)
            result[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            result[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
        return result

    def attend(layer: int, x: torch.Tensor) -> torch.Tensor:
        p, d, count = f"model.layers.{layer}.self_attn.", config.head_dim, len(x)
        q, k, v = (
            (x @ w[f"{p}{n}_proj.weight"].T + w[f"{p}{n}_proj.bias"]).view(count, -1, d)
            for n in "qkv"
        )
        q, k = norm(q, w[f"{p}q_norm.weight"]), norm(k, w[f"{p}k_norm.weight"])
        out, cap = torch.zeros_like(q), config.attention_softcap or 0
        window = config.sliding_window if config.layer_types[layer] == "sliding" else count
        for t in range(count):
            seen = range(max(0, t - (window or 0) + 1), t + 1)
            for head in range(config.heads):
                group = head * config.kv_heads // config.heads
                dots = [rotate(q[t, head], t) @ rotate(k[s, group], s) / d**0.5 for s in seen]
                scores = [cap * torch.tanh(dot / cap) for dot in dots]
                weights = torch.stack([*scores, w[f"{p}sinks"][head]]).softmax(0)
                out[t, head] = sum(weights[i] * v[s, group] for i, s in enumerate(seen))
        return out.reshape(count, -1) @ w[f"{p}o_proj.weight"].T

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config.layers):
        p = f"model.layers.{layer}."
        x = x + attend(layer, norm(x, w[f"{p}input_layernorm.weight"]))
        h = norm(x, w[f"{p}post_attention_layernorm.weight"])
        gate, up = h @ w[f"{p}mlp.gate_proj.weight"].T, h @ w[f"{p}mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[f"{p}mlp.down_proj.weight"].T
    logits = norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
    return (logits / (config.logit_softcap or 1)).tanh() * (config.logit_softcap or 1)


def test_the_hybrid_is_what_it_says() -> None:
    empty = random_weights(HYBRID, 0)
    checkpoint = Inventing("toy", HYBRID, "hf", {}, (), empty.text)
    model = built(checkpoint)
    assert checkpoint.tensors is not None
    weights = {name: one.dequantize().double() for name, one in checkpoint.tensors.items()}
    tokens = [(11 * at + 5) % 50 for at in range(14)]
    expected = plain_hybrid(HYBRID, weights, tokens).float()
    torch.testing.assert_close(run(model, tokens), expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.5
