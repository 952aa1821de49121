"""`config.json` of encoders, whose fields have other names and mean a little else.

Field names and defaults are those of transformers' `configuration_bert.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import ModelConfig

if TYPE_CHECKING:
    from .fields import Fields

ENCODERS = ("bert",)
"""Values of `model_type`."""


def read_encoder_config(name: str, fields: Fields) -> ModelConfig:
    """Build a `ModelConfig` of an encoder; every linear of one has a bias, and norms centre.

    Raises:
        CheckpointError: A missing or impossible field, or positions that are not in a table.
    """
    positions = fields.text("position_embedding_type", "absolute")
    if positions != "absolute":
        raise fields.fault("position_embedding_type", f"may be 'absolute', not '{positions}'")
    hidden, heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    if hidden % heads:
        raise fields.fault("num_attention_heads", f"must divide hidden_size, {hidden}")
    dtype = fields.raw("dtype") or fields.raw("torch_dtype")
    return ModelConfig(
        architecture=name,
        hidden=hidden,
        intermediate=fields.size("intermediate_size", 3072),
        layers=fields.size("num_hidden_layers", 12),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=fields.size("vocab_size", 30522),
        context=fields.size("max_position_embeddings", 512),
        norm_eps=fields.number("layer_norm_eps", 1e-12),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        hidden_act=fields.text("hidden_act", "gelu"),
        dtype=dtype if isinstance(dtype, str) else None,
        pad_id=fields.token_id("pad_token_id"),
    )
