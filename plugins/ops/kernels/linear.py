"""Linears with what comes before and behind them: own kernels for few rows, torch's for many.

The vendor's library is made for large products. For one row it launches norm, product, the sum of
split products and activation, each with a start and an end in which memory rests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.ops import linear as library

from .activation import gelu_mul, silu_mul
from .few_rows import MOST_ROWS, few_rows
from .norm import add_rms_norm, rms_norm
from .one_row import one_row
from .plans import plan_few_rows, plan_one_row

if TYPE_CHECKING:
    import torch

    from camshaft.contracts.ops import Activation


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None = None,
    *,
    early: bool = False,
) -> torch.Tensor:
    """See `Ops.linear`."""
    if len(x) == 1:
        plan = plan_one_row(*weight.shape, is_gated=False)
        return one_row(x, weight, bias, plan, dtype=dtype, early=early)[0]
    few = plan_few_rows(*weight.shape, is_gated=False) if _are_few(x) else None
    if few is None:
        return library(x, weight, bias, dtype)
    return few_rows(x, weight, bias, few, dtype=dtype, early=early)


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.norm_linear`. One launch for one row; the residual is only read then."""
    if len(x) != 1:
        normed, total = _normed(x, residual, norm, eps, early=early)
        return linear(normed, weight, bias, early=early), total
    plan = plan_one_row(*weight.shape, is_gated=False)
    return one_row(x, weight, bias, plan, residual=residual, norm=norm, eps=eps, early=early)


def norm_gated_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Activation,
    *,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.norm_gated_linear`. One launch for one row, two for few, three for many."""
    outputs, inputs = len(weight) // 2, weight.shape[1]
    if len(x) == 1:
        plan = plan_one_row(outputs, inputs, is_gated=True)
        return one_row(
            x, weight, bias, plan,
            residual=residual, norm=norm, eps=eps, activation=activation, early=early,
        )  # fmt: skip
    normed, total = _normed(x, residual, norm, eps, early=early)
    few = plan_few_rows(outputs, inputs, is_gated=True) if _are_few(x) else None
    if few is not None:
        return few_rows(normed, weight, bias, few, activation=activation, early=early), total
    gate_up = library(normed, weight, bias)
    activate = silu_mul if activation == "silu" else gelu_mul
    return activate(gate_up, early=early), total


def _are_few(x: torch.Tensor) -> bool:
    """Whether tensor cores may multiply the rows in one tile; they round float32."""
    return 2 <= len(x) <= MOST_ROWS and x.element_size() == 2


def _normed(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, *, early: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if residual is None:
        return rms_norm(x, norm, eps, early=early), x
    return add_rms_norm(x, residual, norm, eps, early=early)
