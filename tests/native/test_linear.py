"""Packed linears of the compiled library against the same weights decoded."""

from __future__ import annotations

import pytest
import torch

from camshaft.native import reasons
from camshaft.native.linear import Form, PackedWeight, linear, lookup, pack

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


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_gives_nan_and_others_do_not(bad: float) -> None:
    weight, _ = weight_of(FORMS[0], 32, 64)
    x = torch.randn(3, 64)
    x[1, 40] = bad
    out = torch.empty(3, 32)
    linear(x, weight, None, out)
    assert out.isnan().all(dim=1).tolist() == [False, True, False]


def test_a_row_of_zeros_gives_zeros() -> None:
    weight, _ = weight_of(FORMS[0], 32, 64)
    out = torch.empty(1, 32)
    linear(torch.zeros(1, 64), weight, None, out)
    assert (out == 0).all()
