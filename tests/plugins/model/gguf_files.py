"""Small models, written to GGUF files as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from camshaft.checkpoint import open_checkpoint
from camshaft.contracts.model import Model, ModelParts
from camshaft.contracts.quant import Quantizer
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.quant.components import NoneSettings
from camshaft.plugins.quant.none import Unquantized
from camshaft.testing.blocks import random_blocks
from camshaft.testing.model import OPS

TINY: dict[str, Any] = {
    "hidden_size": 288,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 80,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def random_model(name: str, **fields: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**TINY, **fields})
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn_like(weight)
            weight.copy_(noise * weight.shape[1] ** -0.5 if weight.ndim == 2 else 1 + noise / 4)
    return model


def write_gguf(
    model: Any, path: Path, architecture: str, formats: Mapping[str, str] | None = None
) -> None:
    """Write a model through the `gguf` package.

    Matrices are stored in `formats`, by their names in the file such as `attn_q`, else in float32.
    """
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    names = get_tensor_name_map(getattr(MODEL_ARCH, architecture.upper()), 2)
    for name, weight in model.state_dict().items():
        values = weight.detach().clone()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_" in name else config.num_key_value_heads
            halves = values.view(heads, 2, -1, *values.shape[1:])
            values = halves.transpose(1, 2).reshape(values.shape)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None
        format = (formats or {}).get(target.split(".")[-2])
        if format is None or values.ndim < 2:
            writer.add_tensor(target, values.numpy())
        else:
            array, kind = packed(target, values, format)
            writer.add_tensor(target, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(name: str, values: torch.Tensor, format: str) -> tuple[np.ndarray, Any]:
    """Quantise as the `gguf` package does, or take random blocks where it cannot."""
    from gguf import GGMLQuantizationType, quantize

    kind = GGMLQuantizationType[format.upper()]
    try:
        return quantize(values.numpy(), kind), kind
    except NotImplementedError:
        blocks = random_blocks(name, format, tuple(values.shape), seed=sum(name.encode()))
        return blocks.data.reshape(len(values), -1), kind


def built(source: Path, quantizer: Quantizer | None = None) -> Model:
    checkpoint = open_checkpoint(str(source))
    parts = ModelParts(
        quantizer=quantizer or Unquantized(NoneSettings()),
        ops=OPS,
        dtype="float32",
        device="cpu",
        deterministic=False,
        max_context=128,
        layers=(0, 2),
    )
    return DecoderFamily(DecoderSettings()).build(checkpoint, parts)
