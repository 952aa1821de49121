"""A linear of one row, with what comes before and behind it: norm, projection, gate.

One row is a matrix times a vector: each weight is read once and used once, so the kernel can be as
fast as memory. A program owns a few outputs and all of K, and nothing is reduced across programs.
Where a norm comes first every program computes it: the row lies in the second-level cache, and one
launch less is worth more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from camshaft.kernel_launch import launcher

from .activation import gated

if TYPE_CHECKING:
    from .plans import OneRow


# weight [N, K], or [2 * N, K] with the gates first; a program walks along K:
#
#            BK      BK
#        +-------+-------+---
#     BN | tile  | next  |        the next tile is on its way while this one is multiplied
#        +-------+-------+---
@triton.jit
def _one_row(
    x, residual, norm, weight, bias, out, total, eps,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ROW: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Write BN outputs of one row; the first program writes the sum with the residual, too."""
    if EARLY and not AHEAD:
        gdc_launch_dependents()
        gdc_wait()
    kind: tl.constexpr = weight.dtype.element_ty
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = output < N
    rows = weight + output.to(tl.int64)[:, None] * K
    uppers = rows + N * K
    column = tl.arange(0, BK)
    # nobody writes weights, so with AHEAD they are on their way before the last kernel is done
    tile = _tile(rows, column, inside, N, K, BN, BK)
    upper = tile
    if GATED:
        upper = _tile(uppers, column, inside, N, K, BN, BK)
    scale = 1.0
    if norm is not None:
        scale = _scale(norm, column, K)
    if EARLY and AHEAD:
        gdc_launch_dependents()
        gdc_wait()
    inverse = 1.0
    values = _sum(x, residual, column, K)
    if norm is not None:
        row = values
        if ROW != BK:
            row = _sum(x, residual, tl.arange(0, ROW), K)
        if residual is not None:
            place = tl.arange(0, ROW)
            tl.store(
                total + place,
                row.to(total.dtype.element_ty),
                mask=(place < K) & (tl.program_id(0) == 0),
            )
        inverse = tl.rsqrt(tl.sum(row * row, axis=0) / K + eps)
        # rounded, because that is what the references multiply
        values = (values * inverse * scale).to(kind).to(tl.float32)
    first = tl.zeros([BN, BK // 8], tl.float32)
    second = first
    for step in range(1, (K + BK - 1) // BK):
        following = column + step * BK
        next_tile = _tile(rows, following, inside, N, K, BN, BK)
        next_upper = next_tile
        if GATED:
            next_upper = _tile(uppers, following, inside, N, K, BN, BK)
        next_values = _sum(x, residual, following, K)
        if norm is not None:
            next_values *= inverse * _scale(norm, following, K)
            next_values = next_values.to(kind).to(tl.float32)
        first += _products(tile, values, BN, BK)
        if GATED:
            second += _products(upper, values, BN, BK)
        tile, upper, values = next_tile, next_upper, next_values
    result = tl.sum(first + _products(tile, values, BN, BK), axis=1)
    if bias is not None:
        result += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(second + _products(upper, values, BN, BK), axis=1)
        if bias is not None:
            up += tl.load(bias + N + output, mask=inside, other=0.0).to(tl.float32)
        # rounded, because that is what the references open
        result = gated(result.to(kind).to(tl.float32), up.to(kind).to(tl.float32), kind, GELU)
    tl.store(out + output, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tile(
    rows, column, inside, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Load BN rows of a weight from `column` on, with masks only where the shape needs them."""
    place = rows + column[None, :]
    if N % BN == 0 and K % BK == 0:
        return tl.load(place)
    else:
        return tl.load(place, mask=inside[:, None] & (column < K)[None, :], other=0.0)


@triton.jit
def _sum(x, residual, column, K: tl.constexpr):
    """Load x in float32, with the residual added and rounded as later layers will see it."""
    value = tl.load(x + column, mask=column < K, other=0.0).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + column, mask=column < K, other=0.0).to(tl.float32)
        value = value.to(residual.dtype.element_ty).to(tl.float32)
    return value


@triton.jit
def _scale(norm, column, K: tl.constexpr):
    """Load a part of the norm's weight in float32."""
    return tl.load(norm + column, mask=column < K, other=0.0).to(tl.float32)


@triton.jit
def _products(tile, values, BN: tl.constexpr, BK: tl.constexpr):
    """Multiply [BN, BK] with [BK] and add up what lies in one thread: [BN, BK / 8]."""
    products = tile.to(tl.float32) * values[None, :]
    return tl.sum(tl.reshape(products, [BN, BK // 8, 8]), axis=2)


def one_row(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: OneRow,
    *,
    residual: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    activation: str = "",
    dtype: torch.dtype | None = None,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply one row with a weight.

    Args:
        x: [1, K].
        weight: Contiguous [N, K], or [2 * N, K] with the gates first if there is an activation.
        bias: [N] or [2 * N], or None.
        plan: How the work is cut.
        residual: [1, K], added to x before the norm, or None; only read.
        norm: [K], the weight of an RMS norm of the row, or None.
        eps: Of the norm.
        activation: `silu`, `gelu`, or empty for a plain projection.
        dtype: Of the outputs, the weight's by default.
        early: Launch before the kernel before this one is done.

    Returns:
        The outputs [1, N], and the sum [1, K] of x and the residual, which is x if there is none.
    """
    outputs, inputs = len(weight) >> bool(activation), weight.shape[1]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    out = x.new_empty(1, outputs, dtype=dtype or weight.dtype)
    total = x if residual is None else torch.empty_like(residual)
    launch = launcher(
        _one_row,
        N=outputs,
        K=inputs,
        BN=plan.outputs,
        BK=plan.inputs,
        ROW=max(plan.inputs, triton.next_power_of_2(inputs)),
        GATED=bool(activation),
        GELU=activation == "gelu",
        EARLY=early,
        AHEAD=plan.ahead,
        num_warps=plan.warps,
        **({"launch_pdl": True} if early else {}),
    )
    programs = triton.cdiv(outputs, plan.outputs)
    launch((programs, 1, 1), x, residual, norm, weight, bias, out, total, eps)
    return out, total
