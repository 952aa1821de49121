"""The quantizer `none` and the storage form `none`."""

from __future__ import annotations

import pytest
import torch

from camshaft.checkpoint import CheckpointTensor
from camshaft.contracts.attention import AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.contracts.quant import LinearSpec, Quantizer, StepContext
from camshaft.plugins.quant.components import KVNoneSettings, NoneSettings
from camshaft.plugins.quant.dense import prepack
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.plugins.quant.none import Unquantized
from camshaft.testing.blocks import random_blocks
from camshaft.testing.kv_quant import KVQuantContract
from camshaft.testing.quant import CPU, QuantizerContract
from camshaft.testing.tensors import stored_tensor


class TestNone(QuantizerContract):
    formats = ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")
    dtypes = ("float32", "bfloat16")

    def make(self) -> Quantizer:
        return Unquantized(NoneSettings())


class TestNoneOfKQuants(QuantizerContract):
    formats = ("f32", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
    dtypes = ("float32", "bfloat16")
    inputs = 256

    def make(self) -> Quantizer:
        return Unquantized(NoneSettings())

    def stored(self, name: str, values: torch.Tensor, format: str) -> CheckpointTensor:
        if format == "f32":
            return stored_tensor(name, values, format)
        return random_blocks(name, format, tuple(values.shape), seed=values.shape[0])


class TestPlainKV(KVQuantContract):
    def make(self) -> KVQuant:
        return PlainKV(KVNoneSettings())


def test_a_page_lies_in_memory_as_its_order_says() -> None:
    spec = AttentionSpec(4, 2, 8, 8, "float32", page_tokens=3)
    layouts = [PlainKV(KVNoneSettings()).layout(spec, o) for o in ("tokens_first", "heads_first")]
    assert [layout.fields[0].shape for layout in layouts] == [(3, 2, 8), (2, 3, 8)]


def test_a_dtype_that_nothing_computes_in_is_refused() -> None:
    assert Unquantized.supports(["f32"], "int8", CPU) == [
        "it serves bfloat16, float16, float32, not int8"
    ]


def test_a_prepacked_weight_multiplies_as_the_plain_one() -> None:
    weight = torch.randn(48, 64).bfloat16()
    packed = prepack(weight)
    if packed is None:
        pytest.skip("this torch or this processor has no prepacked bfloat16 linear")
    assert torch.equal(packed.to_dense(), weight)


def test_a_head_is_held_once_and_a_tied_one_keeps_its_rows() -> None:
    values = stored_tensor("w", torch.randn(64, 64))
    sizes = {}
    for role in ("linear", "embedding", "tied"):
        spec = LinearSpec("w", 64, (64,), role=role, dtype="bfloat16")
        method = Unquantized(NoneSettings()).linear(spec)
        method.load(0, values)
        method.finish()
        sizes[role] = method.resident_bytes()
    assert sizes["embedding"] == sizes["linear"] == 64 * 64 * 2
    assert sizes["tied"] in (64 * 64 * 2, 2 * 64 * 64 * 2)  # the second where it is prepacked


def test_a_plain_matrix_is_offered_and_one_that_multiplies_otherwise_is_not() -> None:
    weight = torch.randn(48, 64)

    def dense(**changes):
        method = Unquantized(NoneSettings()).linear(LinearSpec("w", 64, (48,), **changes))
        method.load(0, stored_tensor("w", weight))
        if changes.get("bias"):
            method.load_bias(0, stored_tensor("b", torch.ones(48)), None)
        method.finish()
        return method.dense()

    matrix, bias = dense(bias=True)
    assert torch.equal(matrix, weight)
    assert torch.equal(bias, torch.ones(48))
    assert dense()[1] is None
    assert torch.equal(dense(deterministic=True)[0], weight)
    assert (dense(dtype="bfloat16") is None) == (prepack(weight.bfloat16()) is not None)


def test_float32_without_a_bias_is_torch_s_own_product() -> None:
    method = Unquantized(NoneSettings()).linear(LinearSpec("w", 32, (48,)))
    weight, x = torch.randn(48, 32), torch.randn(5, 32)
    method.load(0, stored_tensor("w", weight))
    method.finish()
    assert torch.equal(method.apply(x, StepContext(5)), torch.nn.functional.linear(x, weight))
