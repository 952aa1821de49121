"""GGUF files mix types: within a layer, among rows that are reordered, and at the ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.plugins.quant.components import GgufSettings
from camshaft.plugins.quant.gguf import Gguf
from camshaft.testing.model import run

from .gguf_files import built, random_model, write_gguf

TOKENS = [(13 * at + 5) % 80 for at in range(64)]
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MIXED = {
    **dict(zip(MATRICES, ("q4_k", "q3_k", "q6_k", "q5_k", "q4_k", "q2_k", "q8_0"), strict=True)),
    "token_embd": "q6_k",
    "output": "q5_0",
}


@pytest.fixture
def llama() -> Any:
    return random_model("Llama", **SIZES)


def decoded_by_reference(model: Any, path: Path) -> None:
    """Give a model the weights of its file as the `gguf` package decodes them."""
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map

    stored = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, 2)
    weights = {}
    for name in model.state_dict():
        tensor = stored[names.get_name(name, try_suffixes=(".weight",)) or ""]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if ".q_proj." in name or ".k_proj." in name:
            pairs = values.view(-1, 32, 2, values.shape[1])  # rows of a head that rotate together
            values = pairs.transpose(1, 2).reshape(values.shape)
        weights[name] = values
    model.load_state_dict(weights)


def test_a_file_of_many_types_gives_the_logits_of_its_decoded_weights(
    llama: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(llama, path, "llama", MIXED)
    decoded_by_reference(llama, path)
    with torch.inference_mode():
        expected = llama(torch.tensor([TOKENS])).logits[0]
    assert expected.std() > 0.1
    torch.testing.assert_close(run(built(path), TOKENS), expected, rtol=0, atol=1e-4)
    packed = run(built(path, Gguf(GgufSettings())), TOKENS)
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_packed_rows_are_reordered_as_plain_ones(format: str, llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(llama, path, "llama", dict.fromkeys(MATRICES, format))
    packed = run(built(path, Gguf(GgufSettings())), TOKENS)
    torch.testing.assert_close(packed, run(built(path), TOKENS), rtol=0, atol=1e-4)


def test_what_stays_resident_of_a_mixed_file_is_counted(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(llama, path, "llama", MIXED)
    plain = built(path).facts.weight_bytes
    packed = built(path, Gguf(GgufSettings())).facts.weight_bytes  # in float32 as in the file
    weights = sum(weight.numel() for weight in llama.parameters())
    rotations = plain - 4 * weights
    assert rotations == 2 * 128 * 32 * 4
    norms = 5 * 256 * 4
    # bits of a weight in its type, and how many of a layer are of it
    bits = {"q4_k": 4.5, "q3_k": 3.4375, "q6_k": 6.5625, "q5_k": 5.5, "q2_k": 2.625, "q8_0": 8.5}
    rows = dict(zip(MATRICES, (256, 128, 128, 256, 256, 256, 256), strict=True))
    layer = sum(rows[name] * 256 * bits[MIXED[name]] / 8 for name in MATRICES)
    ends = 80 * 256 * (6.5625 + 5.5) / 8
    assert packed == 2 * layer + ends + norms + rotations
