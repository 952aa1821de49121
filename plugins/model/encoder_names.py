"""Weight names of encoders: ours, and those of Hugging Face files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    from camshaft.checkpoint import ModelConfig

_TABLES = {
    "embed": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}

ENCODER_IGNORED = (r"(bert\.)?pooler\..*", r"cls\..*")
"""Tensors of heads that were trained with an encoder."""


def is_wrapped(tensors: Container[str]) -> bool:
    """Return whether an encoder stands in a file as a part of a larger model."""
    return f"bert.{_TABLES['embed']}.weight" in tensors


def encoder_names(config: ModelConfig, prefix: str = "") -> dict[str, str]:
    """Map every weight of an encoder to its name in a file.

    Args:
        config: Of the model.
        prefix: Before each name in the file.
    """
    pairs = [*_TABLES.items(), ("embed_norm", "embeddings.LayerNorm")]
    for layer in range(config.layers):
        pairs += [
            (f"layers.{layer}.{ours}", f"encoder.layer.{layer}.{theirs}")
            for ours, theirs in _LAYER.items()
        ]
    return {
        f"{ours}.{kind}": f"{prefix}{theirs}.{kind}"
        for ours, theirs in pairs
        for kind in (("weight",) if ours in _TABLES else ("weight", "bias"))
    }
