"""Gated activations: one half of a row opens the other.

Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from camshaft.kernel_launch import launcher

from .launch import options

BLOCK = 1024
"""Elements of gate and of up that a program reads."""


@triton.jit
def _gated(
    gate_up, out, row_stride,
    I: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write activate(gate) * up of gate_up [T, 2 * I], a block of a row."""
    program = tl.program_id(0)
    row = (program // BLOCKS).to(tl.int64)
    column = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    inside = column < I
    place = gate_up + row * row_stride + column
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + I, mask=inside, other=0.0).to(tl.float32)
    result = gated(gate, up, out.dtype.element_ty, GELU)
    tl.store(out + row * I + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated(gate, up, kind: tl.constexpr, GELU: tl.constexpr):
    """Return activate(gate) * up in float32; `kind` is what the references round to between."""
    argument = gate
    if GELU:
        # (1 + tanh(z)) / 2 is the logistic function of 2 z; 2 * sqrt(2 / pi) = 1.59576912...
        argument = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    opened = gate / (1.0 + tl.exp(-argument))
    return opened.to(kind).to(tl.float32) * up


def silu_mul(gate_up: torch.Tensor, *, early: bool = False) -> torch.Tensor:
    """See `Ops.silu_mul`."""
    return _launch(gate_up, gelu=False, early=early)


def gelu_mul(gate_up: torch.Tensor, *, early: bool = False) -> torch.Tensor:
    """See `Ops.gelu_mul`."""
    return _launch(gate_up, gelu=True, early=early)


def _launch(gate_up: torch.Tensor, *, gelu: bool, early: bool) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    block = min(BLOCK, triton.next_power_of_2(width))
    # one flat axis of the grid: the second holds 65,535 programs, fewer than a large step's rows
    blocks = triton.cdiv(width, block)
    launch = launcher(
        _gated,
        I=width,
        BLOCKS=blocks,
        BLOCK=block,
        GELU=gelu,
        EARLY=early,
        **options(block, 4, early=early),
    )
    launch((tokens * blocks, 1, 1), gate_up, out, gate_up.stride(0))
    return out
