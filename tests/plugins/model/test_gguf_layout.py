"""GGUF files hold query and key rows in an order of their own, for some architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.checkpoint import open_checkpoint
from camshaft.contracts.model import Model, ModelParts
from camshaft.contracts.quant import Quantizer
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.model.names import rotary_rows
from camshaft.plugins.quant.components import GgufSettings, NoneSettings
from camshaft.plugins.quant.gguf import Gguf
from camshaft.plugins.quant.none import Unquantized
from camshaft.testing.model import OPS, run

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
TOKENS = [(13 * at + 5) % 80 for at in range(64)]


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


def write_gguf(model: Any, path: Path, architecture: str, *, packed: bool = False) -> None:
    """Write a model as llama.cpp's converter does, through the `gguf` package."""
    from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize

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
        kind = GGMLQuantizationType.Q4_0 if packed and values.ndim == 2 else None
        array = values.numpy() if kind is None else quantize(values.numpy(), kind)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None
        writer.add_tensor(target, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


@pytest.mark.parametrize(
    ("name", "architecture", "fields"),
    [
        ("Llama", "llama", {"tie_word_embeddings": True}),
        ("Llama", "llama", {"attention_bias": True}),
        (
            "Qwen2",
            "qwen2",
            {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
        ),
        ("Qwen3", "qwen3", {}),
    ],
)
def test_GGF_01_both_files_of_a_model_give_the_same_logits(
    name: str, architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(name, **fields)
    model.save_pretrained(tmp_path / "folder")
    write_gguf(model, tmp_path / "model.gguf", architecture)
    from_folder = run(built(tmp_path / "folder"), TOKENS)
    from_gguf = run(built(tmp_path / "model.gguf"), TOKENS)
    torch.testing.assert_close(from_gguf, from_folder, rtol=0, atol=1e-4)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(from_gguf, expected, rtol=0, atol=1e-4)


def test_packed_rows_are_reordered_as_plain_ones(tmp_path: Path) -> None:
    model = random_model("Llama", tie_word_embeddings=True)
    write_gguf(model, tmp_path / "model.gguf", "llama", packed=True)
    plain = run(built(tmp_path / "model.gguf"), TOKENS)
    packed = run(built(tmp_path / "model.gguf", Gguf(GgufSettings())), TOKENS)
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-4)


def test_rows_that_rotate_together_are_neighbours_in_the_file() -> None:
    rows = rotary_rows(heads=2, head_dim=6, rotated=6)
    assert rows.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_rows_that_do_not_rotate_stay_in_place() -> None:
    assert rotary_rows(heads=1, head_dim=6, rotated=4).tolist() == [0, 2, 1, 3, 4, 5]
