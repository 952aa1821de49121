"""Linears of few rows, in shapes that meet every way in which they are cut."""

from __future__ import annotations

import pytest
import torch

from camshaft.ops import OpsTable

pytest.importorskip("triton", reason="Triton is not installed")

from camshaft.plugins.ops.kernels.linear import linear, norm_gated_linear, norm_linear
from camshaft.plugins.ops.kernels.plans import plan_few_rows, plan_one_row

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.interpreted),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
devices = pytest.mark.parametrize("device", DEVICES)

# narrow, padded to a power of two, longer than one tile, of a length that no tile divides
SHAPES = [(20, 64), (48, 576), (16, 2048), (12, 3072), (24, 4096), (8, 5008)]
REAL = [
    (4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False),
    (6144, 4096, False), (4096, 4096, False), (14336, 4096, True), (4096, 14336, False),
    (151936, 1024, False), (960, 576, False), (1536, 576, True), (576, 1536, False),
]  # fmt: skip


def drawn(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(*shape).to(device, torch.float16)


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3)


@devices
@pytest.mark.parametrize("rows", [1, 2, 16, 17])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_any_shape_equals_the_reference(outputs: int, inputs: int, rows: int, device: str) -> None:
    x = drawn(rows, inputs, device=device)
    weight = drawn(outputs, inputs, device=device) / inputs**0.5
    bias = drawn(outputs, device=device)
    norm = 1 + drawn(inputs, device=device) / 8
    assert_near(linear(x, weight, bias), OpsTable().linear(x, weight, bias))
    given = (norm, 1e-6, weight, bias)
    residual = drawn(rows, inputs, device=device)
    want = OpsTable().norm_linear(x, residual.clone(), *given)
    for got, one in zip(norm_linear(x, residual.clone(), *given), want, strict=True):
        assert_near(got, one)
    want = OpsTable().norm_gated_linear(x, residual.clone(), *given, "silu")
    assert_near(norm_gated_linear(x, residual, *given, "silu")[0], want[0])


@devices
def test_one_row_leaves_the_residual_alone_and_writes_the_sum_once(device: str) -> None:
    # programs read it still while the first one writes
    x, residual = drawn(2, 1, 64, device=device)
    weight, norm = drawn(24, 64, device=device), torch.ones(64, device=device).half()
    before = residual.clone()
    _, total = norm_linear(x, residual, norm, 1e-6, weight, None)
    assert torch.equal(residual, before)
    assert torch.equal(total, x + residual)


@devices
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_may_lie_apart(rows: int, device: str) -> None:
    whole, weight = drawn(rows, 192, device=device), drawn(16, 64, device=device)
    part = whole[:, 64:128]
    assert_near(linear(part, weight, None), OpsTable().linear(part.contiguous(), weight, None))


@devices
def test_no_rows_give_no_rows(device: str) -> None:
    x, weight = drawn(0, 64, device=device), drawn(16, 64, device=device)
    norm = torch.ones(64, device=device).half()
    assert linear(x, weight, None).shape == (0, 16)
    assert norm_gated_linear(x, x.clone(), norm, 1e-6, weight, None, "gelu")[0].shape == (0, 8)


@devices
def test_halves_are_rounded_where_the_references_round(device: str) -> None:
    # the sum 2049 has no float16: unrounded, the norm of 2048 would come out larger
    x = torch.tensor([[1.0] + [0.0] * 15], device=device).half()
    residual = torch.tensor([[2048.0] + [0.0] * 15], device=device).half()
    norm, weight = torch.ones(16, device=device).half(), torch.eye(16, device=device).half()
    projected, total = norm_linear(x, residual, norm, 0.0, weight, None)
    assert (projected[0, 0].item(), total[0, 0].item()) == (4.0, 2048.0)


@devices
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_a_float32_result_was_never_rounded_to_halves(rows: int, device: str) -> None:
    if device == "cpu" and rows == 17:
        pytest.skip("torch rounds on a CPU")
    x, weight = drawn(rows, 64, device=device), drawn(16, 64, device=device)
    exact = x.double() @ weight.double().t()
    found = linear(x, weight, None, torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@devices
def test_a_float32_residual_stays_float32(device: str) -> None:
    x, norm = torch.full((1, 16), 1.0, device=device).half(), torch.ones(16, device=device).half()
    residual, weight = torch.full((1, 16), 2048.0, device=device), torch.eye(16, device=device)
    projected, total = norm_linear(x, residual, norm, 0.0, weight.half(), None)
    assert (projected.dtype, total.dtype) == (torch.float16, torch.float32)
    assert (projected[0, 3].item(), total[0, 3].item()) == (1.0, 2049.0)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_early_launches_in_a_replayed_graph_never_run_ahead_of_their_arguments(rows: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this device has no programmatic dependent launch")
    layers = [
        [drawn(n, k, device="cuda") / k**0.5 for n, k in ((96, 64), (64, 96), (512, 64), (64, 256))]
        for _ in range(24)
    ]
    norm = torch.ones(64, device="cuda").half()

    def chain(x: torch.Tensor, residual: torch.Tensor, *, early: bool) -> torch.Tensor:
        residual = residual.clone()
        for first, second, gates, down in layers:
            y, residual = norm_linear(x, residual, norm, 1e-6, first, None, early=early)
            y = linear(y, second, None, early=early)
            y, residual = norm_gated_linear(
                y, residual, norm, 1e-6, gates, None, "silu", early=early
            )
            x = linear(y, down, None, early=early)
        return x + residual

    x, residual = drawn(2, rows, 64, device="cuda")
    chain(x, residual, early=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(x, residual, early=True)
    for _ in range(50):  # a launch that runs ahead fails seldom
        x.copy_(drawn(rows, 64, device="cuda"))
        residual.copy_(drawn(rows, 64, device="cuda"))
        graph.replay()
        assert torch.equal(found, chain(x, residual, early=False))


@pytest.mark.parametrize(("outputs", "inputs", "is_gated"), REAL)
def test_plans_fill_the_device_and_tiles_lie_in_registers(
    outputs: int, inputs: int, is_gated: bool
) -> None:
    one = plan_one_row(outputs, inputs, is_gated=is_gated)
    few = plan_few_rows(outputs, inputs, is_gated=is_gated)
    tiles = [(one.outputs, one.inputs, one.warps)]
    if few is not None:
        tiles.append((few.outputs, few.inputs * few.warps, few.warps))
    for height, width, warps in tiles:
        assert 8 <= height * (1 + is_gated) * width / (32 * warps) <= 128
        assert outputs / height >= min(128, outputs / 8)


def test_large_weights_go_to_the_library_when_there_are_several_rows() -> None:
    assert plan_few_rows(28672, 4096, is_gated=True) is None
    assert plan_few_rows(4096, 512, is_gated=False) is None
    assert plan_few_rows(1000, 1024, is_gated=False) is not None
