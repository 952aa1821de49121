"""The quantizer `gguf`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from camshaft.checkpoint import CheckpointTensor
from camshaft.contracts.quant import LinearMethod, LinearSpec, Quantizer, StepContext
from camshaft.errors import PluginError
from camshaft.native import reasons
from camshaft.native.rows import gelu_mul, silu_mul
from camshaft.plugins.quant.components import GgufSettings
from camshaft.plugins.quant.gguf import Gguf
from camshaft.plugins.quant.packed import quantize_q4_0
from camshaft.testing.blocks import random_blocks
from camshaft.testing.quant import CPU, QuantizerContract
from camshaft.testing.tensors import stored_tensor

needs_native = pytest.mark.skipif(bool(reasons()), reason="; ".join(reasons()))
FEW = ("q4_0", "q4_1", "q8_0", "f32", "f16", "bf16")
MANY = ("f32", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q5_0", "q5_1", "iq4_nl", "q4_1")
# 8 bits of activations are off by 0.55 % of their norm
ROUNDED = {"float32": 1e-5, "bfloat16": 8e-3}


class _ManyTypes(QuantizerContract):
    formats = MANY
    dtypes = ("float32", "bfloat16")
    inputs = 256

    def stored(self, name: str, values: torch.Tensor, format: str) -> CheckpointTensor:
        if format == "f32":
            return stored_tensor(name, values, format)
        return random_blocks(name, format, tuple(values.shape), seed=values.shape[0])


@needs_native
class TestGguf(QuantizerContract):
    formats = FEW
    dtypes = ("float32", "bfloat16")
    product_error = ROUNDED

    def make(self) -> Quantizer:
        return Gguf(GgufSettings(kernels="native"))


@needs_native
class TestGgufOfManyTypes(_ManyTypes):
    product_error = ROUNDED

    def make(self) -> Quantizer:
        return Gguf(GgufSettings(kernels="native"))


class TestGgufByTorch(QuantizerContract):
    formats = FEW
    dtypes = ("float32", "bfloat16")

    def make(self) -> Quantizer:
        return Gguf(GgufSettings(kernels="torch"))


class TestGgufOfManyTypesByTorch(_ManyTypes):
    def make(self) -> Quantizer:
        return Gguf(GgufSettings(kernels="torch", keep_bf16=False))


def build(
    spec: LinearSpec,
    *weights: torch.Tensor,
    format: str = "q4_1",
    **settings: Any,
) -> LinearMethod:
    method = Gguf(GgufSettings(**settings)).linear(spec)
    for part, weight in enumerate(weights):
        method.load(part, stored_tensor(f"w{part}", weight, format))
    method.finish()
    return method


SPEC = LinearSpec("layers.0.qkv", 64, (96,), dtype="bfloat16")


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_4_bit_weights_stay_packed(kernels: str) -> None:
    # 5 bits a weight: quants and, for each 32 of them, scale and zero of 16 bits each
    packed = build(SPEC, torch.randn(96, 64), kernels=kernels, keep_bf16=False)
    assert packed.resident_bytes() == 96 * 64 * 5 // 8


def test_a_copy_is_counted() -> None:
    kept = build(SPEC, torch.randn(96, 64), keep_bf16=True)
    assert kept.resident_bytes() >= 96 * 64 * 5 // 8 + 96 * 64 * 2


def test_float32_keeps_nothing_but_the_file_s_bytes() -> None:
    spec = replace(SPEC, dtype="float32", role="tied")
    assert build(spec, torch.randn(96, 64)).resident_bytes() == 96 * 64 * 20 // 32


def test_an_embedding_keeps_nothing_but_the_file_s_bytes() -> None:
    spec = replace(SPEC, role="embedding")
    method = build(spec, torch.randn(96, 64), format="q8_0")
    assert method.resident_bytes() == 96 * 64 * 34 // 32


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_parts_with_rows_that_are_no_multiple_of_16_are_padded_inside(kernels: str) -> None:
    spec = replace(SPEC, parts=(7, 3))
    weights = torch.randn(7, 64), torch.randn(3, 64)
    method = build(spec, *weights, kernels=kernels, keep_bf16=False)
    x = torch.randn(2, 64).bfloat16()
    found = method.apply(x, StepContext(2)).float()
    assert found.shape == (2, 10)
    torch.testing.assert_close(found, x.float() @ method.dequantized().t(), rtol=0.02, atol=0.15)


@pytest.mark.parametrize("format", ["q4_0", "q4_1"])
def test_the_packed_kernel_sees_the_quants_exactly(format: str) -> None:
    # scales and minima that bfloat16 holds exactly leave no error at all
    quants = torch.arange(32).remainder(16).repeat(16, 2).float()
    scale = torch.tensor([0.5, -0.25]).repeat_interleave(32)
    offset = -8 * scale if format == "q4_0" else torch.full((64,), 1.5)
    data = torch.empty(16, 2, 18 if format == "q4_0" else 20, dtype=torch.uint8)
    floats = torch.tensor([[0.5, 1.5], [-0.25, 1.5]])[:, : 1 if format == "q4_0" else 2].half()
    data[..., :-16] = floats.view(torch.uint8)
    low = torch.arange(16, dtype=torch.uint8)
    data[..., -16:] = low | low << 4
    tensor = replace(stored_tensor("w", torch.zeros(16, 64), format), data=data.reshape(-1).numpy())
    method = Gguf(GgufSettings()).linear(replace(SPEC, parts=(16,)))
    method.load(0, tensor)
    method.finish()
    assert torch.equal(method.dequantized(), quants * scale + offset)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_few_rows_use_the_packed_form_and_many_the_copy(kernels: Any) -> None:
    settings = GgufSettings(kernels=kernels, keep_bf16=True, packed_rows=3)
    method = Gguf(settings).linear(SPEC)
    weight = torch.randn(96, 64)
    method.load(0, stored_tensor("w", weight, "q4_1"))
    method.finish()
    x = torch.randn(4, 64).bfloat16()
    exact = stored_tensor("w", weight, "q4_1").dequantize()
    as_copy = torch.nn.functional.linear(x, exact.bfloat16())
    assert torch.equal(method.apply(x, StepContext(4)), as_copy)
    assert not torch.equal(method.apply(x[:3].contiguous(), StepContext(3)), as_copy[:3])


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (1536, 576)])
def test_packed_rows_have_the_same_bits_in_any_batch(
    inputs: int, outputs: int, kernels: str
) -> None:
    spec = LinearSpec("w", inputs, (outputs,), dtype="bfloat16")
    method = build(spec, torch.randn(outputs, inputs), kernels=kernels, keep_bf16=False)
    x = torch.randn(21, inputs).bfloat16()
    together = method.apply(x, StepContext(21))
    for row in (0, 4, 13, 20):
        assert torch.equal(method.apply(x[row : row + 1], StepContext(1))[0], together[row])


def bytes_of(kernels: Any) -> dict[str, int]:
    spec = replace(SPEC, inputs=256, parts=(128,))
    held = {}
    for format in ("q2_k", "q4_k", "q5_k", "q6_k"):
        method = Gguf(GgufSettings(kernels=kernels, keep_bf16=False)).linear(spec)
        method.load(0, random_blocks("w", format, (128, 256)))
        method.finish()
        held[format] = method.resident_bytes()
    return held


def test_of_k_quants_torch_keeps_q4_k_packed_and_others_become_bfloat16() -> None:
    by_torch = {"q2_k": 512, "q4_k": 160, "q5_k": 512, "q6_k": 512}
    assert bytes_of("torch") == {name: 128 * row for name, row in by_torch.items()}


@needs_native
def test_all_k_quants_stay_packed_with_compiled_kernels() -> None:
    # two float32 for 32 weights, or for 16
    packed = {"q2_k": 384, "q4_k": 192, "q5_k": 320, "q6_k": 384}
    assert bytes_of("native") == {name: 128 * row for name, row in packed.items()}


@needs_native
@pytest.mark.parametrize("rows", [1, 100])
def test_a_gate_of_the_same_library_is_applied_with_the_product(rows: int) -> None:
    method, step = build(SPEC, torch.randn(96, 64), kernels="native"), StepContext(rows)
    x, seen = torch.randn(rows, 64).bfloat16(), []

    def other(both: torch.Tensor) -> torch.Tensor:
        seen.append(both)
        return silu_mul(both)

    apart = method.apply_then(x, step, other)
    assert seen
    assert torch.equal(seen[0], method.apply(x, step))
    assert torch.equal(method.apply_then(x, step, silu_mul), apart)
    assert not torch.equal(method.apply_then(x, step, gelu_mul), apart)


@needs_native
def test_many_rows_get_weights_of_one_scale_a_row_where_batches_may_matter() -> None:
    weight, x = torch.randn(96, 64), torch.randn(64, 64).bfloat16()
    results = {}
    for name, spec, rows in (
        ("default", SPEC, 64),
        ("never", SPEC, 0),
        ("deterministic", replace(SPEC, deterministic=True), 64),
    ):
        method = build(spec, weight, kernels="native", per_channel_rows=rows)
        results[name] = method.apply(x, StepContext(64))
        few = method.apply(x[:63], StepContext(63))
        assert torch.equal(few, results[name][:63]) == (name != "default")
    assert torch.equal(results["never"], results["deterministic"])
    torch.testing.assert_close(results["default"], results["never"], rtol=0.05, atol=0.5)


@needs_native
def test_logits_of_packed_weights_are_not_rounded_to_bfloat16() -> None:
    method = build(SPEC, torch.randn(96, 64), kernels="native")
    x = torch.randn(2, 64).bfloat16()
    wide = method.apply_wide(x, StepContext(2))
    assert wide.dtype is torch.float32
    assert torch.equal(wide.bfloat16(), method.apply(x, StepContext(2)))
    assert not torch.equal(wide, wide.bfloat16().float())


@pytest.mark.parametrize("format", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_an_embedding_of_k_quants_keeps_the_file_s_bytes_and_decodes_rows(format: str) -> None:
    tensor = random_blocks("w", format, (96, 256))
    method = Gguf(GgufSettings()).linear(replace(SPEC, inputs=256, role="embedding"))
    method.load(0, tensor)
    method.finish()
    assert method.resident_bytes() == tensor.nbytes
    found = method.lookup(torch.tensor([95, 0]))
    assert torch.equal(found, tensor.dequantize(torch.bfloat16)[[95, 0]])


def test_types_that_nothing_decodes_are_refused_by_name_with_what_to_do() -> None:
    reasons = Gguf.supports(["f32", "iq2_xxs", "q4_k", "tq1_0"], "bfloat16", CPU)
    assert [reason.split(":")[0] for reason in reasons] == [
        "it does not serve tensors of type iq2_xxs; convert the model to types that it serves",
        "it does not serve tensors of type tq1_0; convert the model to types that it serves",
    ]


def test_a_file_without_packed_tensors_is_refused() -> None:
    assert Gguf.supports(["bf16", "f32"], "bfloat16", CPU) == [
        "no tensor is packed, only bf16, f32; use 'none'"
    ]


def test_random_weights_need_no_file() -> None:
    assert Gguf.supports([], "bfloat16", CPU) == []


def test_other_devices_are_refused() -> None:
    assert Gguf.supports(["q4_1"], "bfloat16", replace(CPU, kind="cuda")) == [
        "it runs on cpu, not on cuda"
    ]


def test_float16_is_refused() -> None:
    assert Gguf.supports(["q4_1"], "float16", CPU) == [
        "it serves bfloat16 and float32, not float16"
    ]


def test_QNT_04_random_weights_of_a_width_without_whole_blocks_are_refused_with_both_numbers() -> (
    None
):
    method = Gguf(GgufSettings()).linear(replace(SPEC, inputs=72))
    with pytest.raises(PluginError, match=r"rows of 72 weights are no whole blocks of 32"):
        method.randomize(torch.Generator(), 1.0)


def test_quantising_keeps_extremes_and_zeros() -> None:
    weight = torch.zeros(2, 32)
    weight[1, 3], weight[1, 4] = -4.0, 3.5
    rows = quantize_q4_0(weight)
    assert torch.equal(rows.dequantize(torch.float32), weight)
