"""Weight names: ours, those of Hugging Face files, and those of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from camshaft.checkpoint import ModelConfig

# Ours, Hugging Face's, GGUF's. `{}` is the number of the layer; `.weight` or `.bias` is appended,
# but for the sinks, which have neither in Hugging Face files.
_OUTER = (
    ("embed", "model.embed_tokens", "token_embd"),
    ("norm", "model.norm", "output_norm"),
    ("head", "lm_head", "output"),
)
_LAYER = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "q": ("self_attn.q_proj", "attn_q"),
    "k": ("self_attn.k_proj", "attn_k"),
    "v": ("self_attn.v_proj", "attn_v"),
    "q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "sinks": ("self_attn.sinks", "attn_sinks"),
    "out": ("self_attn.o_proj", "attn_output"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}

IGNORED = (r"rope_freqs\.weight", r".*\.rotary_emb\.inv_freq")
"""Tensors that carry nothing but rope frequencies, which the configuration already has."""


def weight_names(config: ModelConfig, layout: str) -> dict[str, str]:
    """Map every weight of a model to its name in files of a layout."""
    side = ("hf", "gguf").index(layout)
    names = {
        f"{outer[0]}.weight": f"{outer[1 + side]}.weight"
        for outer in _OUTER
        if outer[0] != "head" or not config.tie_embeddings
    }
    prefix = ("model.layers", "blk")[side]
    for layer in range(config.layers):
        for weight in layer_weights(config):
            ours, _, kind = weight.partition(".")
            theirs = f"{prefix}.{layer}.{_LAYER[ours][side]}"
            if ours != "sinks" or layout == "gguf":
                theirs = f"{theirs}.{kind}"
            names[f"layers.{layer}.{weight}"] = theirs
    return names


def layer_weights(config: ModelConfig) -> Iterator[str]:
    """Yield the names of a layer's weights and biases, without the layer."""
    has_bias = {
        **dict.fromkeys(("q", "k", "v"), config.attention_bias),
        "out": config.attention_out_bias,
        **dict.fromkeys(("gate", "up", "down"), config.mlp_bias),
    }
    is_there = {
        **dict.fromkeys(("q_norm", "k_norm"), config.qk_norm),
        "sinks": config.attention_sinks,
    }
    for ours in _LAYER:
        if is_there.get(ours, True):
            yield f"{ours}.weight"
        if has_bias.get(ours, False):
            yield f"{ours}.bias"


def rotary_rows(heads: int, head_dim: int, rotated: int) -> torch.Tensor:
    """Return where rows of a query or key projection stand in a GGUF file of type llama.

    Such a file has the two elements that rotate together side by side:

        ours  [0 1 ... r/2-1 | r/2 ... r-1 | rest]     file  [0 r/2 1 r/2+1 ... | rest]

    Args:
        heads: Of the projection.
        head_dim: Rows of a head.
        rotated: r, leading rows of a head that rotate.

    Returns:
        int64 [heads * head_dim]: our row i is the file's row `result[i]`.
    """
    within = torch.arange(head_dim)
    within[:rotated] = within[:rotated].view(-1, 2).t().reshape(-1)
    return (torch.arange(heads)[:, None] * head_dim + within).reshape(-1)
