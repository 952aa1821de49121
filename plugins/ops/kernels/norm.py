"""RMS norm of rows, with or without the addition of a residual.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467. A program
holds a whole row in registers: it is read once and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from camshaft.kernel_launch import launcher

from .launch import options


@triton.jit
def _rms_norm(
    x, residual, weight, out, x_row, residual_row, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Norm a row of x [T, C], after adding it to that row of the residual, if there is one."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    # nobody writes weights, so they are on their way before the kernel before this one is done
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        place = residual + row * residual_row + column
        value += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        total = value.to(residual.dtype.element_ty)
        tl.store(place, total, mask=inside)
        value = total.to(tl.float32)  # what later layers will see, not more
    mean = tl.sum(value * value, axis=0) / C
    result = value * tl.rsqrt(mean + eps) * scale
    tl.store(out + row * C + column, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, early: bool = False
) -> torch.Tensor:
    """See `Ops.rms_norm`. Rows may lie apart; elements of a row lie side by side."""
    return _launch(x, None, weight, eps, early=early)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_rms_norm`. The residual is overwritten with the sum, rounded to its dtype."""
    return _launch(x, residual, weight, eps, early=early), residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    early: bool,
) -> torch.Tensor:
    tokens, width = x.shape
    assert x.stride(1) == 1
    assert residual is None or (residual.shape == x.shape and residual.stride(1) == 1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(width)
    launch = launcher(
        _rms_norm,
        C=width,
        BLOCK=block,
        EARLY=early,
        **options(block, 8 if block <= 4096 else 16, early=early),
    )
    residual_row = 0 if residual is None else residual.stride(0)
    launch((tokens, 1, 1), x, residual, weight, out, x.stride(0), residual_row, eps)
    return out
