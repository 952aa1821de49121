from __future__ import annotations

import pytest
import torch

from camshaft.contracts.ops import OpImplementation, OpsProvider
from camshaft.testing.ops import OpsProviderContract
from camshaft.testing.rejects import failures


def always(facts, dtype):
    return []


def not_in_half(facts, dtype):
    return [] if dtype in {"float32", "bfloat16"} else [f"not in {dtype}"]


def norm(x, weight, eps):
    scale = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x.double() * scale * weight.double()).to(x.dtype)


def add_norm(x, residual, weight, eps):
    total = x + residual
    return norm(total, weight, eps).to(x.dtype), total


def add_norm_in_place(x, residual, weight, eps):
    residual += x
    return norm(residual, weight, eps).to(x.dtype), residual


def silu(gate_up):
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def gelu(gate_up):
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)


def rope(qkv, positions, layer, *, interleaved=False):
    rows = qkv.view(len(qkv), -1)
    keys = (layer.heads + layer.kv_heads) * layer.head_dim
    heads = rows[:, :keys].double().view(len(qkv), -1, layer.head_dim).clone()
    values = rows[:, keys:].view(len(qkv), layer.kv_heads, layer.value_dim)
    parts = list(heads.split((layer.heads, layer.kv_heads), dim=1))
    for index, weight in enumerate((layer.q_norm, layer.k_norm)):
        part = parts[index] if weight is None else norm(parts[index], weight, layer.norm_eps)
        parts[index] = part if layer.rope is None else turned(part, positions, layer.rope)
    return parts[0].to(qkv.dtype), parts[1].to(qkv.dtype), values


def turned(x, positions, tables):
    half = tables.cos.shape[1]
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    turns = torch.complex(tables.cos[positions].double(), tables.sin[positions].double())
    result = x.clone()
    pairs = pairs * turns[:, None]
    result[..., :half], result[..., half : 2 * half] = pairs.real, pairs.imag
    return result


def linear(x, weight, bias, dtype=None):
    result = x.double() @ weight.double().t()
    return (result if bias is None else result + bias.double()).to(dtype or x.dtype)


def row_linear(x, weight, bias, dtype=None):
    return torch.cat([linear(row, weight, bias, dtype) for row in x.split(1)])


def norm_linear(x, residual, weight, eps, matrix, bias):
    normed, total = (
        (norm(x, weight, eps), x) if residual is None else add_norm(x, residual, weight, eps)
    )
    return linear(normed, matrix, bias), total


def norm_gated_linear(x, residual, weight, eps, matrix, bias, activation):
    gate_up, total = norm_linear(x, residual, weight, eps, matrix, bias)
    return {"silu": silu, "gelu": gelu}[activation](gate_up), total


GOOD = {
    "rms_norm": norm,
    "add_rms_norm": add_norm_in_place,
    "rope_qk_norm": rope,
    "silu_mul": silu,
    "gelu_mul": gelu,
    "linear": linear,
    "row_linear": row_linear,
    "norm_linear": norm_linear,
    "norm_gated_linear": norm_gated_linear,
}


def verdict(supports=not_in_half, **functions) -> list[str]:
    class Provider(OpsProvider):
        def implementations(self) -> list[OpImplementation]:
            return [OpImplementation(name, one, supports) for name, one in functions.items()]

    class Contract(OpsProviderContract):
        def make(self) -> OpsProvider:
            return Provider()

    return failures(Contract)


def test_a_good_provider_passes() -> None:
    assert verdict(**GOOD) == []
    assert verdict(add_rms_norm=add_norm) == []


def test_nothing_to_offer_and_nothing_that_fits_are_rejected() -> None:
    assert "test_it_offers_operations_that_exist" in verdict()
    elsewhere = verdict(lambda facts, dtype: ["needs an accelerator"], rms_norm=norm)
    assert elsewhere == ["test_it_supports_something_here"]


def without_weight(x, weight, eps):
    return norm(x, torch.ones_like(weight), eps)


def in_float32(x, weight, eps):
    return norm(x, weight, eps).float()


def in_halves(x, weight, eps):
    """Sums squares in float16."""
    scale = (x.half().square().sum(-1, keepdim=True).float() / x.shape[-1] + eps).rsqrt()
    return (x.float() * scale * weight.float()).to(x.dtype)


def without_eps(x, weight, eps):
    return norm(x, weight, 0.0)


def over_all_rows(x, weight, eps):
    if len(x) == 5:  # only in company
        return norm(x.reshape(1, -1), weight.repeat(5), eps).view_as(x)
    return norm(x, weight, eps)


def single_row(x, weight, eps):
    return norm(x[:1], weight, eps).expand_as(x)


def in_place(x, weight, eps):
    x.copy_(norm(x, weight, eps))
    return x.clone()


def residual_is_scratch(x, residual, weight, eps):
    result = add_norm(x, residual, weight, eps)
    residual.zero_()
    return result


def forgets_the_sum(x, residual, weight, eps):
    return add_norm(x, residual, weight, eps)[:1]


def neighbours_rotated(qkv, positions, layer):
    """Pairs up neighbours, as some checkpoints have it."""
    q, k, v = rope(qkv, positions, layer)
    return q.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), k, v


def in_order(qkv, positions, layer):
    return rope(qkv, torch.arange(len(positions)), layer)


def equal_values(qkv, positions, layer):
    q, k, v = rope(qkv, positions, layer)
    return q, k, torch.nn.functional.pad(v, (0, layer.head_dim - layer.value_dim))


def exact_gelu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate) * up


def up_first(gate_up):
    return silu(gate_up.roll(gate_up.shape[-1] // 2, dims=-1))


def in_halves_of_k_for_many_rows(x, weight, bias, dtype=None):
    if len(x) < 32:
        return row_linear(x, weight, bias, dtype)
    low, high = x.float().chunk(2, dim=1), weight.float().chunk(2, dim=1)
    total = low[0] @ high[0].t() + low[1] @ high[1].t()
    return (total if bias is None else total + bias.float()).to(dtype or x.dtype)


def without_bias(x, weight, bias, dtype=None):
    return linear(x, weight, None, dtype)


def always_the_same_dtype(x, weight, bias, dtype=None):
    return linear(x, weight, bias)


def without_residual(x, residual, weight, eps, matrix, bias):
    return norm_linear(x, None, weight, eps, matrix, bias)


def returns_the_residual(x, residual, weight, eps, matrix, bias):
    projected, total = norm_linear(x, residual, weight, eps, matrix, bias)
    return projected, total if residual is None else residual


def always_silu(x, residual, weight, eps, matrix, bias, activation):
    return norm_gated_linear(x, residual, weight, eps, matrix, bias, "silu")


@pytest.mark.parametrize(
    ("name", "function", "test"),
    [
        ("rmsnorm", norm, "test_it_offers_operations_that_exist"),
        ("rms_norm", without_weight, "test_it_equals_the_reference"),
        ("rms_norm", in_float32, "test_it_equals_the_reference"),
        ("rms_norm", single_row, "test_it_equals_the_reference"),
        ("rms_norm", in_halves, "test_large_values_do_not_overflow"),
        ("rms_norm", without_eps, "test_rows_of_zeros_stay_finite"),
        ("rms_norm", over_all_rows, "test_a_row_that_is_not_finite_stays_alone"),
        ("rms_norm", in_place, "test_it_equals_the_reference"),
        ("add_rms_norm", residual_is_scratch, "test_it_equals_the_reference"),
        ("add_rms_norm", forgets_the_sum, "test_it_equals_the_reference"),
        ("rope_qk_norm", neighbours_rotated, "test_it_equals_the_reference"),
        ("rope_qk_norm", in_order, "test_it_equals_the_reference"),
        ("rope_qk_norm", equal_values, "test_it_equals_the_reference"),
        ("gelu_mul", exact_gelu, "test_it_equals_the_reference"),
        ("silu_mul", up_first, "test_it_equals_the_reference"),
        ("linear", without_bias, "test_it_equals_the_reference"),
        ("linear", always_the_same_dtype, "test_it_equals_the_reference"),
        ("row_linear", in_halves_of_k_for_many_rows, "test_rows_do_not_depend_on_each_other"),
        ("norm_linear", without_residual, "test_it_equals_the_reference"),
        ("norm_linear", returns_the_residual, "test_it_equals_the_reference"),
        ("norm_gated_linear", always_silu, "test_it_equals_the_reference"),
    ],
)
def test_a_version_that_differs_is_rejected(name: str, function, test: str) -> None:
    assert test in verdict(**{name: function})


def test_an_answer_that_is_no_list_of_reasons_is_rejected() -> None:
    for answer in (None, [None], "not here", [""]):
        wrong = verdict(lambda facts, dtype, answer=answer: answer, rms_norm=norm)
        assert "test_support_is_answered_in_words_for_every_device" in wrong
