from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from camshaft.contracts.attention import AttentionLayer, Rope
from camshaft.contracts.ops import OpImplementation, OpsProvider
from camshaft.facts import DeviceFacts
from camshaft.ops import (
    OpsTable,
    add_rms_norm,
    compose_ops,
    gelu_mul,
    linear,
    rms_norm,
    rope_qk_norm,
    rotate,
    row_linear,
    silu_mul,
)
from camshaft.testing.ops import OpsProviderContract, rope

FACTS = DeviceFacts("cpu", "test", 2**30, frozenset({"float32"}))


def random_rows(tokens: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def layer(heads: int, kv_heads: int, head_dim: int, **fields) -> AttentionLayer:
    return AttentionLayer(0, 0, heads, kv_heads, head_dim, head_dim, 1.0, **fields)


class References(OpsProvider):
    """The references themselves, wrapped: what any provider must equal."""

    def implementations(self) -> list[OpImplementation]:
        return [
            OpImplementation(
                name,
                lambda *given, one=function: one(*given),
                lambda facts, dtype: [] if dtype in {"float32", "bfloat16"} else [f"no {dtype}"],
            )
            for name, function in vars(OpsTable()).items()
        ]


class TestReferencesKeepTheContract(OpsProviderContract):
    def make(self) -> OpsProvider:
        return References()


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x = torch.tensor([[3.0, 4.0]])
    assert rms_norm(x, torch.tensor([1.0, 2.0]), 0.0).tolist() == [
        [pytest.approx(3 / math.sqrt(12.5)), pytest.approx(8 / math.sqrt(12.5))]
    ]
    assert rms_norm(x * 0, torch.ones(2), 1e-6).tolist() == [[0.0, 0.0]]


def test_rms_norm_and_rotation_equal_those_of_transformers() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

    x, weight = random_rows(7, 576), random_rows(1, 576)[0]
    theirs = LlamaRMSNorm(576, eps=1e-5)
    theirs.weight.data = weight
    assert torch.allclose(rms_norm(x, weight, 1e-5), theirs(x), atol=1e-6)

    tables, positions = rope(64, torch.device("cpu")), torch.tensor([0, 5, 17, 3, 200, 511, 1])
    q, k = random_rows(7, 9 * 64).view(7, 9, 64), random_rows(7, 3 * 64, seed=1).view(7, 3, 64)
    cos, sin = (torch.cat((one, one), dim=-1)[positions] for one in (tables.cos, tables.sin))
    wanted = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)
    assert torch.allclose(rotate(q, *tables.at(positions)), wanted[0], atol=1e-6)
    assert torch.allclose(rotate(k, *tables.at(positions)), wanted[1], atol=1e-6)


def test_a_pair_turns_by_its_angle_times_the_position() -> None:
    tables = Rope(torch.tensor([[1.0], [math.cos(0.5)]]), torch.tensor([[0.0], [math.sin(0.5)]]))
    turned = rotate(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), *tables.at(torch.tensor([0, 1])))
    assert turned[0, 0].tolist() == [1.0, 0.0]
    assert turned[1, 0].tolist() == pytest.approx([math.cos(0.5), math.sin(0.5)])


def test_dimensions_beyond_the_rotated_ones_are_kept() -> None:
    x = random_rows(4, 16).view(4, 1, 16)
    tables = rope(6, torch.device("cpu"))
    turned = rotate(x, *tables.at(torch.tensor([1, 2, 3, 4])))
    assert torch.equal(turned[..., 6:], x[..., 6:])
    assert not torch.equal(turned[..., :6], x[..., :6])


def test_the_sum_is_returned_and_normalised() -> None:
    x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    normed, total = add_rms_norm(x, residual, torch.ones(2), 0.0)
    assert total.tolist() == [[3.0, 4.0]]
    assert torch.equal(normed, rms_norm(total, torch.ones(2), 0.0))
    assert x.tolist() == [[1.0, 2.0]]


def test_qkv_is_split_in_this_order_and_values_are_left_alone() -> None:
    qkv = torch.arange(16.0).view(2, 8)
    q, k, v = rope_qk_norm(qkv, torch.tensor([3, 9]), layer(2, 1, 2))
    assert q.tolist() == [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    assert k.tolist() == [[[4, 5]], [[12, 13]]]
    assert v.tolist() == [[[6, 7]], [[14, 15]]]


def test_heads_are_normed_before_they_are_rotated() -> None:
    tables, positions = rope(4, torch.device("cpu")), torch.tensor([2, 7, 1])
    qkv, weight = random_rows(3, 16), torch.tensor([1.0, 2.0, 3.0, 4.0])
    q, k, _ = rope_qk_norm(qkv, positions, layer(2, 1, 4, rope=tables, q_norm=weight))
    heads = qkv[:, :8].view(3, 2, 4)
    assert torch.equal(q, rotate(rms_norm(heads, weight, 1e-6), *tables.at(positions)))
    assert torch.equal(k, rotate(qkv[:, 8:12].view(3, 1, 4), *tables.at(positions)))


def test_gates_equal_their_formulas() -> None:
    rows = random_rows(5, 64)
    gate, up = rows[:, :32].double().numpy(), rows[:, 32:].double().numpy()
    silu = gate / (1 + np.exp(-gate)) * up
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    gelu = 0.5 * gate * (1 + np.tanh(inner)) * up
    assert np.abs(silu_mul(rows).numpy() - silu).max() < 1e-6
    assert np.abs(gelu_mul(rows).numpy() - gelu).max() < 1e-6


WEIGHT = random_rows(1, 576, seed=2)[0]
TABLES = rope(64, torch.device("cpu"))
LAYER = layer(9, 3, 64, rope=TABLES, q_norm=WEIGHT[:64], k_norm=WEIGHT[64:128])


def qkv_rows(rows: torch.Tensor) -> torch.Tensor:
    """Take the position from the row, so that it comes along when the row is alone."""
    positions = (rows[:, -1].abs() * 100).long()
    parts = rope_qk_norm(rows[:, : 15 * 64], positions, LAYER)
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def added_rows(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat(add_rms_norm(rows[:, :576], rows[:, 576:1152].clone(), WEIGHT, 1e-5), dim=1)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    "operation",
    [
        lambda rows: rms_norm(rows[:, :576], WEIGHT, 1e-5),
        added_rows,
        qkv_rows,
        silu_mul,
        lambda rows: silu_mul(rows[:, :2002]),
        gelu_mul,
        lambda rows: gelu_mul(rows[:, :2002]),
    ],
    ids=["rms_norm", "add_rms_norm", "rope_qk_norm", "silu", "odd silu", "gelu", "odd gelu"],
)
def test_a_row_has_the_same_bits_alone_and_among_others(operation, threads: int) -> None:
    # with 5 threads a thread's share of the work ends in the middle of a row
    rows, before = random_rows(97, 3072), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for tokens in (33, 97):
            together = operation(rows[:tokens])
            for index in range(tokens):
                alone = operation(rows[index : index + 1])
                assert torch.equal(alone[0], together[index]), index
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (1536, 576), (64, 200), (33, 17)])
def test_tiles_give_each_row_the_same_bits_wherever_it_stands(
    inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(43, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    together = row_linear(x, weight, None)
    for row in (0, 1, 7, 8, 30, 42):
        assert torch.equal(row_linear(x[row : row + 1], weight, None)[0], together[row])
    order = torch.randperm(43)
    assert torch.equal(row_linear(x[order].contiguous(), weight, None), together[order])


def test_a_later_provider_wins_and_what_is_not_supported_is_left_out() -> None:
    def first(gate_up):
        return gate_up

    def second(gate_up):
        return gate_up

    def offering(function, *reasons: str) -> OpsProvider:
        class Provider(OpsProvider):
            def implementations(self) -> list[OpImplementation]:
                return [OpImplementation("silu_mul", function, lambda facts, dtype: list(reasons))]

        return Provider()

    assert compose_ops([], FACTS, "float32").silu_mul is silu_mul
    assert compose_ops([offering(first), offering(second)], FACTS, "float32").silu_mul is second
    refused = compose_ops([offering(first), offering(second, "no")], FACTS, "float32")
    assert refused.silu_mul is first
    assert refused.gelu_mul is gelu_mul


def test_fused_operations_call_what_the_table_holds() -> None:
    table, x = OpsTable(), torch.ones(2, 3)
    table.replace("add_rms_norm", lambda x, residual, weight, eps: (x + 1, residual * 10))
    table.replace("linear", lambda x, weight, bias: torch.cat((x, x * 5), dim=1))
    table.replace("gelu_mul", lambda gate_up: gate_up.sum(dim=1))
    given = (x, x * 2, torch.ones(3), 0.0, torch.ones(6, 3), None)
    projected, total = table.norm_linear(*given)
    assert (projected[0].tolist(), total[0].tolist()) == ([2, 2, 2, 10, 10, 10], [20, 20, 20])
    assert table.norm_gated_linear(*given, "gelu")[0].tolist() == [36, 36]


def test_without_a_residual_the_sum_is_what_was_given() -> None:
    x, norm, weight = random_rows(2, 8), random_rows(1, 8, seed=1)[0], random_rows(6, 8, seed=2)
    projected, total = OpsTable().norm_linear(x, None, norm, 1e-6, weight, torch.ones(6))
    assert total is x
    assert torch.equal(projected, linear(rms_norm(x, norm, 1e-6), weight, torch.ones(6)))


def test_an_operation_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match=r"'rmsnorm'; there are \['add_rms_norm'"):
        OpsTable().replace("rmsnorm", rms_norm)
