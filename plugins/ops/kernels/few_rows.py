"""A linear of 2 to 16 rows: bound by the weight's bytes, multiplied by the tensor cores.

The rows are padded to the 16 that a tensor core multiplies at least. A program owns a few outputs
and all of K; its warps share K among them and add up in the end, because outputs are too few to
give each warp its own.
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
    from .plans import FewRows

MOST_ROWS = 16


# a tile is [S, BN, BK]: warp s of S multiplies columns s * BK to (s + 1) * BK of every S * BK
@triton.jit(do_not_specialize=["tokens"])
def _few_rows(
    x, weight, bias, out, x_row, tokens,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr,
    ROWS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write BN outputs of up to ROWS rows."""
    kind: tl.constexpr = weight.dtype.element_ty
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = weight + output.to(tl.int64)[None, :, None] * K
    uppers = rows + N * K
    inside = (output < N)[None, :, None]
    token = tl.arange(0, ROWS)
    sources = x + token[None, :, None] * x_row
    present = (token < tokens)[None, :, None]
    column = tl.arange(0, S)[:, None, None] * BK + tl.arange(0, BK)[None, None, :]
    # nobody writes weights, so they are on their way before the kernel before this one is done
    tile = _tile(rows, column, inside, N % BN == 0, K, S * BK)
    upper = tile
    if GATED:
        upper = _tile(uppers, column, inside, N % BN == 0, K, S * BK)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    values = _tile(sources, column, present, False, K, S * BK)
    first = tl.zeros([S, ROWS, BN], tl.float32)
    second = first
    for step in range(1, (K + S * BK - 1) // (S * BK)):
        following = column + step * (S * BK)
        next_tile = _tile(rows, following, inside, N % BN == 0, K, S * BK)
        next_upper = next_tile
        if GATED:
            next_upper = _tile(uppers, following, inside, N % BN == 0, K, S * BK)
        next_values = _tile(sources, following, present, False, K, S * BK)
        first = tl.dot(values, tl.permute(tile, (0, 2, 1)), first)
        if GATED:
            second = tl.dot(values, tl.permute(upper, (0, 2, 1)), second)
        tile, upper, values = next_tile, next_upper, next_values
    result = tl.sum(tl.dot(values, tl.permute(tile, (0, 2, 1)), first), axis=0)
    opened = output < N
    if bias is not None:
        result += tl.load(bias + output, mask=opened, other=0.0).to(tl.float32)[None, :]
    if GATED:
        up = tl.sum(tl.dot(values, tl.permute(upper, (0, 2, 1)), second), axis=0)
        if bias is not None:
            up += tl.load(bias + N + output, mask=opened, other=0.0).to(tl.float32)[None, :]
        # rounded, because that is what the references open
        result = gated(result.to(kind).to(tl.float32), up.to(kind).to(tl.float32), kind, GELU)
    place = out + token[:, None] * N + output[None, :]
    tl.store(
        place, result.to(out.dtype.element_ty), mask=(token < tokens)[:, None] & opened[None, :]
    )


@triton.jit
def _tile(rows, column, inside, WHOLE: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr):
    """Load a tile from `column` on, with masks only where the shape needs them."""
    if WHOLE and K % STEP == 0:
        return tl.load(rows + column)
    elif K % STEP == 0:
        return tl.load(rows + column, mask=inside, other=0.0)
    else:
        return tl.load(rows + column, mask=inside & (column < K), other=0.0)


def few_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    plan: FewRows,
    *,
    activation: str = "",
    dtype: torch.dtype | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Multiply up to `MOST_ROWS` rows with a weight.

    Args:
        x: [T, K] of a half precision; rows may lie apart.
        weight: Contiguous [N, K], or [2 * N, K] with the gates first if there is an activation.
        bias: [N] or [2 * N], or None.
        plan: How the work is cut.
        activation: `silu`, `gelu`, or empty for a plain projection.
        dtype: Of the outputs, the weight's by default.
        early: Launch before the kernel before this one is done.

    Returns:
        [T, N].
    """
    outputs, inputs = len(weight) >> bool(activation), weight.shape[1]
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    out = x.new_empty(len(x), outputs, dtype=dtype or weight.dtype)
    launch = launcher(
        _few_rows,
        N=outputs,
        K=inputs,
        BN=plan.outputs,
        BK=plan.inputs,
        S=plan.warps,
        ROWS=MOST_ROWS,
        GATED=bool(activation),
        GELU=activation == "gelu",
        EARLY=early,
        num_warps=plan.warps,
        num_stages=1,  # the loop fetches ahead by itself, from before the wait on
        **({"launch_pdl": True} if early else {}),
    )
    programs = triton.cdiv(outputs, plan.outputs)
    launch((programs, 1, 1), x, weight, bias, out, x.stride(0), len(x))
    return out
