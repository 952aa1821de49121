"""The kernels, interpreted on any machine that has Triton and compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from camshaft.contracts.attention import AttentionLayer
from camshaft.contracts.ops import OpsProvider
from camshaft.facts import Capability, DeviceFacts
from camshaft.ops import OpsTable, compose_ops
from camshaft.testing.ops import OpsProviderContract, rope

pytest.importorskip("triton", reason="Triton is not installed")

from camshaft.plugins.ops.components import TritonOpsSettings
from camshaft.plugins.ops.triton import TritonOps

pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory")
interpreter = pytest.mark.interpreted
CAPABLE = frozenset({Capability.TRITON})
DEVICE = pytest.param("cuda", marks=pytest.mark.gpu)
HOST = pytest.param("cpu", marks=interpreter)
devices = pytest.mark.parametrize("device", [HOST, DEVICE])


class TritonContract(OpsProviderContract):
    def make(self) -> OpsProvider:
        return TritonOps(TritonOpsSettings())


@interpreter
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
class TestInterpreted(TritonContract):
    dtypes = ("float32",)  # the interpreter cuts bfloat16 off and cannot multiply it
    facts = DeviceFacts("cpu", "interpreter", 2**30, frozenset({"float32"}), CAPABLE)


@pytest.mark.gpu
class TestCompiled(TritonContract):
    facts = DeviceFacts("cuda", "gpu", 2**30, frozenset({"bfloat16"}), CAPABLE)
    device = "cuda"


class HalfContract(TritonContract):
    dtypes = ("float16",)
    tolerance = {"float16": 2e-3}  # noqa: RUF012 - read only

    def test_large_values_do_not_overflow(self) -> None:
        """The product of gate and up must fit; the sum of squares still does not."""
        self.check(3, lambda given: (given[0] * 40, *given[1:]))


@interpreter
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
class TestHalfInterpreted(HalfContract):
    facts = DeviceFacts("cpu", "interpreter", 2**30, frozenset({"float16"}), CAPABLE)


@pytest.mark.gpu
class TestHalfCompiled(HalfContract):
    facts = DeviceFacts("cuda", "gpu", 2**30, frozenset({"float16"}), CAPABLE)
    device = "cuda"


def table() -> OpsTable:
    found = OpsTable()
    for one in TritonOps(TritonOpsSettings(early_launch=False)).implementations():
        found.replace(one.name, one.function)
    return found


def assert_near(got, want) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def layer_of(heads: int, kv_heads: int, head_dim: int, rotated: int, device: str, norms: bool):
    weight = torch.linspace(0.5, 1.5, head_dim, device=device) if norms else None
    tables = rope(rotated, torch.device(device))
    return AttentionLayer(
        0, 0, heads, kv_heads, head_dim, head_dim, 1.0, rope=tables, q_norm=weight, k_norm=weight
    )


def layers_input(layer: AttentionLayer, tokens: int, device: str) -> torch.Tensor:
    width = (layer.heads + 2 * layer.kv_heads) * layer.head_dim
    return torch.randn(tokens, width, device=device)


@devices
@pytest.mark.parametrize("width", [7, 576, 1000, 1024, 4096, 12288])
def test_rows_of_any_width_equal_the_reference(width: int, device: str) -> None:
    x, residual = torch.randn(2, 3, width, device=device)
    weight = torch.randn(width, device=device)
    assert_near(table().rms_norm(x, weight, 1e-6), OpsTable().rms_norm(x, weight, 1e-6))
    want = OpsTable().add_rms_norm(x, residual.clone(), weight, 1e-6)
    assert_near(table().add_rms_norm(x, residual, weight, 1e-6), want)
    gate_up = torch.randn(3, 2 * width, device=device)
    assert_near(table().silu_mul(gate_up), OpsTable().silu_mul(gate_up))
    assert_near(table().gelu_mul(gate_up), OpsTable().gelu_mul(gate_up))


@devices
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotated"),
    [(32, 8, 128, 128), (16, 8, 128, 128), (9, 3, 64, 64), (5, 1, 80, 32), (12, 12, 256, 64)],
)
def test_shapes_of_real_models_equal_the_reference(
    heads: int, kv_heads: int, head_dim: int, rotated: int, norms: bool, device: str
) -> None:
    layer = layer_of(heads, kv_heads, head_dim, rotated, device, norms)
    qkv = layers_input(layer, 3, device)
    positions = torch.tensor([511, 0, 7], device=device)
    found = table().rope_qk_norm(qkv, positions, layer)
    assert_near(found, OpsTable().rope_qk_norm(qkv, positions, layer))
    assert [one.is_contiguous() for one in found] == [True, True, True]


@devices
def test_rows_may_lie_apart(device: str) -> None:
    whole = torch.randn(4, 192, device=device)
    part, weight = whole[:, :128], torch.ones(128, device=device)
    layer = layer_of(2, 1, 32, 32, device, norms=False)
    positions = torch.arange(4, device=device)
    found, wanted = (
        (ops.rms_norm(part, weight, 1e-6), ops.silu_mul(part), ops.gelu_mul(part))
        for ops in (table(), OpsTable())
    )
    assert_near(found, wanted)
    wanted = OpsTable().rope_qk_norm(part, positions, layer)
    assert_near(table().rope_qk_norm(part, positions, layer), wanted)


@devices
def test_the_residual_is_overwritten_with_the_rounded_sum(device: str) -> None:
    x = torch.tensor([[1.0, 0.0]], device=device, dtype=torch.bfloat16)
    residual = torch.tensor([[256.0, 0.0]], device=device, dtype=torch.bfloat16)
    weight = torch.ones(2, device=device, dtype=torch.bfloat16)
    _, total = table().add_rms_norm(x, residual, weight, 0.0)
    assert total is residual
    assert total.tolist() == [[256.0, 0.0]]  # 257 has no bfloat16


@devices
def test_no_rows_give_no_rows(device: str) -> None:
    layer = layer_of(2, 1, 32, 32, device, norms=True)
    none = torch.randn(0, 128, device=device)
    assert table().rms_norm(none, torch.ones(128, device=device), 1e-6).shape == (0, 128)
    assert table().silu_mul(none).shape == (0, 64)
    positions = torch.arange(0, device=device)
    assert table().rope_qk_norm(none, positions, layer)[0].shape == (0, 2, 32)


@devices
def test_a_position_outside_the_tables_gives_nan_and_harms_no_other(device: str) -> None:
    layer = layer_of(2, 1, 32, 32, device, norms=False)
    qkv = layers_input(layer, 3, device)
    positions = torch.tensor([-1, 511, 512], device=device)
    q, k, v = table().rope_qk_norm(qkv, positions, layer)
    assert q.isnan().flatten(1).all(1).tolist() == [True, False, True]
    assert k.isfinite().flatten(1).all(1).tolist() == [False, True, False]
    assert v.isfinite().all()


@devices
def test_changed_positions_are_seen_though_the_tensor_is_the_same(device: str) -> None:
    layer = layer_of(2, 1, 32, 32, device, norms=False)
    qkv = layers_input(layer, 2, device)
    positions = torch.tensor([3, 4], device=device)
    table().rope_qk_norm(qkv, positions, layer)
    positions.copy_(torch.tensor([8, 9], device=device))
    wanted = OpsTable().rope_qk_norm(qkv, positions.clone(), layer)
    assert_near(table().rope_qk_norm(qkv, positions, layer), wanted)


@pytest.mark.parametrize(
    ("kind", "architecture", "capabilities", "dtype", "early", "word"),
    [
        ("cuda", "sm_90", CAPABLE, "bfloat16", True, ""),
        ("rocm", "gfx942", CAPABLE, "float16", False, ""),
        ("cpu", "x86_64", frozenset(), "float32", False, "Triton"),
        ("cuda", "sm_90", CAPABLE, "float64", False, "float64"),
        ("cuda", "sm_80", CAPABLE, "bfloat16", True, "early_launch"),
        ("rocm", "gfx942", CAPABLE, "bfloat16", True, "early_launch"),
    ],
)
def test_what_it_does_not_support_is_said(
    kind: str, architecture: str, capabilities, dtype: str, early: bool, word: str
) -> None:
    facts = DeviceFacts(kind, "it", 1, frozenset(), capabilities, architecture=architecture)
    offered = TritonOps(TritonOpsSettings(early_launch=early)).implementations()
    plain = [one for one in offered if not getattr(one.function, "keywords", {}).get("any_width")]
    reasons = [" ".join(one.supports(facts, dtype)) for one in plain]
    assert [word in one if word else not one for one in reasons] == [True] * 9


@pytest.mark.parametrize(("architecture", "early"), [("sm_80", False), ("sm_90", True)])
def test_operations_are_launched_early_wherever_the_device_can(
    architecture: str, early: bool
) -> None:
    facts = DeviceFacts("cuda", "it", 1, frozenset(), CAPABLE, architecture=architecture)
    composed = vars(compose_ops([TritonOps(TritonOpsSettings())], facts, "bfloat16"))
    assert {one.keywords["early"] for one in composed.values()} == {early}
    # on sm_80 narrow and wide tiles get instructions of different depths
    assert composed["row_linear"].keywords["any_width"] == (architecture == "sm_90")


def recorded(function, *given):
    """Run a function as a replayed graph would."""
    function(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(*given)
    return graph, result


@pytest.mark.gpu
@pytest.mark.parametrize("early", [False, True])
def test_a_replayed_graph_computes_with_what_its_arguments_hold_then(early: bool) -> None:
    if early and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this device has no programmatic dependent launch")
    offered = TritonOps(TritonOpsSettings(early_launch=early)).implementations()
    ours = {one.name: one.function for one in offered}
    layer = layer_of(4, 2, 64, 64, "cuda", norms=True)
    positions = torch.arange(5, device="cuda")
    x, weight = torch.randn(5, 512, device="cuda"), torch.randn(512, device="cuda")

    def chain(ops, x, positions):
        normed = ops["rms_norm"](x, weight, 1e-6)
        q, k, v = ops["rope_qk_norm"](normed, positions, layer)
        summed, _ = ops["add_rms_norm"](normed, x.clone(), weight, 1e-6)
        return q, k, v, ops["silu_mul"](summed), ops["gelu_mul"](summed)

    graph, results = recorded(chain, ours, x, positions)
    x.copy_(torch.randn(5, 512))
    positions.copy_(torch.tensor([9, 100, 0, 511, 7]))
    wanted = chain(vars(OpsTable()), x, positions.clone())
    for _ in range(20):  # a launch that runs ahead of its arguments fails seldom
        graph.replay()
        torch.testing.assert_close(results, wanted, rtol=1e-4, atol=1e-4)  # errors add up
