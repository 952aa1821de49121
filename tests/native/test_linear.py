"""Packed linears of the compiled library against the same weights decoded."""

from __future__ import annotations

import pytest
import torch

from camshaft.native import reasons
from camshaft.native.linear import NO_GATE, Form, PackedWeight, linear, lookup, pack
from camshaft.native.rows import GELU, SILU, gate

pytestmark = pytest.mark.skipif(bool(reasons()), reason="; ".join(reasons()))

FORMS = [
    Form(4, 32, False),
    Form(4, 32, True),
    Form(8, 32, False),
    Form(8, 32, True),
    Form(8, 16, True),
]


def weight_of(form: Form, outputs: int, inputs: int) -> tuple[PackedWeight, torch.Tensor]:
    """Return random packed weights, and the same in float32."""
    quants = torch.randint(0, 1 << form.bits, (outputs, inputs), dtype=torch.uint8)
    scales = (torch.rand(outputs, inputs // form.group) * 0.01).half().float()
    shifts = (torch.randn(outputs, inputs // form.group) * 0.05).half().float()
    groups = quants.float().view(outputs, -1, form.group)
    exact = groups * scales.unsqueeze(-1) + shifts.unsqueeze(-1)
    return pack(form, quants, scales, shifts), exact.view(outputs, inputs)


def rounded(x: torch.Tensor, group: int) -> torch.Tensor:
    """Round each group of a row to 8 bits, ties to even, as the library does."""
    groups = x.float().view(len(x), -1, group)
    most = groups.abs().amax(-1, keepdim=True)
    quants = (groups * torch.where(most > 0, 127 / most, 0)).round()
    return (quants * (most / 127)).view(x.shape)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 12, 13, 40])
def test_a_product_is_that_of_the_decoded_weight_with_rounded_activations(
    form: Form, rows: int
) -> None:
    weight, exact = weight_of(form, 90, 160)
    x = torch.randn(rows, 160)
    out = torch.empty(rows, 90)
    linear(x, weight, None, out)
    torch.testing.assert_close(out, rounded(x, form.group) @ exact.t(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_have_strides_and_nothing_beside_them_is_touched(dtype: torch.dtype) -> None:
    weight, exact = weight_of(FORMS[0], 50, 64)
    x = torch.randn(5, 100, dtype=dtype)[:, :64]
    room = torch.full((5, 70), 7.0)
    bias = torch.nn.functional.pad(torch.randn(50), (0, 14))
    linear(x, weight, bias, room[:, 10:60])
    expected = rounded(x, 32) @ exact.t() + bias[:50]
    # a number half way between two steps may be rounded to either
    torch.testing.assert_close(room[:, 10:60], expected, rtol=1e-3, atol=1e-2)
    assert (room[:, :10] == 7).all()
    assert (room[:, 60:] == 7).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_are_looked_up_exactly(form: Form) -> None:
    weight, exact = weight_of(form, 50, 96)
    ids = torch.tensor([49, 0, 17, 17])
    out = torch.empty(4, 96)
    lookup(ids, weight, out)
    assert torch.equal(out, exact[ids])


@pytest.mark.parametrize("many", [0, 1])
@pytest.mark.parametrize("at", [40, 150])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_gives_nan_and_others_do_not(
    bad: float, at: int, many: int
) -> None:
    weight, _ = weight_of(FORMS[0], 32, 160)
    x = torch.randn(3, 160)
    x[1, at] = bad
    out = torch.empty(3, 32)
    linear(x, weight, None, out, many)
    assert out.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("many", [0, 1])
def test_a_row_of_zeros_gives_zeros(many: int) -> None:
    weight, _ = weight_of(FORMS[0], 32, 64)
    out = torch.empty(1, 32)
    linear(torch.zeros(1, 64), weight, None, out, many)
    assert (out == 0).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("outputs", [90, 72], ids=["pairs", "one left"])
def test_many_rows_see_weights_of_8_bits_with_one_scale_a_row(form: Form, outputs: int) -> None:
    weight, exact = weight_of(form, outputs, 160)
    x = torch.randn(70, 160)
    few, many = torch.empty(70, outputs), torch.empty(70, outputs)
    linear(x, weight, None, few, 71)
    linear(x, weight, None, many, 70)
    wanted = rounded(x, form.group) @ exact.t()
    torch.testing.assert_close(few, wanted, rtol=1e-3, atol=1e-2)
    step = exact.abs().amax(1) / 127  # the sum of so many halves of it is a normal variable
    assert ((many - wanted).abs() <= 3 * step * x.norm(dim=1, keepdim=True) + 1e-2).all()
    assert 1e-4 < ((many - wanted).norm() / wanted.norm()).item() < 8e-3


def test_a_row_of_the_weight_without_any_gives_zeros_to_many_rows_as_well() -> None:
    quants, ones = torch.full((32, 64), 15, dtype=torch.uint8), torch.ones(32, 2)
    ones[3] = 0
    out = torch.empty(2, 32)
    linear(torch.ones(2, 64), pack(FORMS[0], quants, ones, 0 * ones), None, out, 1)
    torch.testing.assert_close(out, (64 * 15 * ones[:, 0]).expand(2, 32))


def test_many_rows_do_not_depend_on_each_other_and_keep_strides_and_bias() -> None:
    weight, _ = weight_of(FORMS[0], 50, 96)
    wide, room = torch.randn(40, 130).bfloat16(), torch.full((40, 70), 7.0)
    x, bias = wide[:, 10:106], torch.nn.functional.pad(torch.randn(50), (0, 14))
    linear(x, weight, bias, room[:, 10:60], 1)
    some, plain = torch.empty(17, 50), torch.empty(17, 50)
    linear(x[:17], weight, bias, some, 1)
    linear(x[:17].contiguous(), weight, None, plain, 1)
    assert torch.equal(some, room[:17, 10:60])
    assert torch.equal(plain + bias[:50], some)
    assert (room[:, :10] == 7).all()
    assert (room[:, 60:] == 7).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [SILU, GELU])
@pytest.mark.parametrize("many", [0, 9])
def test_a_gated_product_has_the_bits_of_product_and_gate(
    form: Form, dtype: torch.dtype, kind: int, many: int
) -> None:
    weight, _ = weight_of(form, 96, 160)
    x = torch.randn(20, 160, dtype=dtype)
    for rows in (1, 9, 20):
        whole, apart, at_once = (torch.empty(rows, size, dtype=dtype) for size in (96, 48, 48))
        linear(x[:rows], weight, None, whole, many, NO_GATE)
        gate(whole, kind, apart)
        linear(x[:rows], weight, None, at_once, many, kind)
        assert torch.equal(at_once, apart)
