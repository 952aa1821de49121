"""Linears whose rows do not depend on each other, to the bit.

Source: He, "Defeating Nondeterminism in LLM Inference", Thinking Machines, 2025. An output is one
chain of matrix instructions over K in ascending order, into one float32 accumulator, however many
rows there are: K is never split, and zeros stand in for rows that are missing.

The source keeps one tile for all numbers of rows. Departure: where the device's matrix instruction
computes an element in the same way whatever its width, the width of the tile follows the rows. That
is so for Hopper's `wgmma` on bfloat16, m64nNk16 for every tile here. On float16 an H200 gave other
bits for other tiles, and elsewhere a compiler may choose instructions of another depth for another
tile: there it is one tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from camshaft.kernel_launch import launcher


class Tile(NamedTuple):
    """How a program is cut.

    Attributes:
        rows: Of x, 64 at least: narrower ones get another matrix instruction.
        outputs: Of the weight.
        inputs: Of one pass of the loop.
        warps: Of a program; four for each 64 rows, which share one instruction.
        stages: Of the software pipeline.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


EXACT = Tile(64, 64, 32, 4, 2)
"""For float32, which no matrix unit multiplies exactly."""
ANYWHERE = Tile(128, 128, 64, 8, 2)
HOPPER = (
    Tile(256, 128, 64, 8, 4),
    Tile(128, 128, 64, 8, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 6),
    Tile(64, 32, 128, 4, 4),
    Tile(64, 16, 128, 4, 8),
)
"""The largest first. Of 128 x 256, ptxas would serialise the matrix instructions (C7515)."""

ENOUGH_PROGRAMS = 100
"""So many keep most of a device's multiprocessors busy."""
MOST_PADDING = 1.25
"""Rows computed, over those of the lowest tiles."""
TALL = 8
"""Tiles that stand above each other run at about the same time, and share weights in the cache."""


def tile_of(rows: int, outputs: int, dtype: torch.dtype, *, any_width: bool) -> Tile:
    """Return the largest tile of which there are enough, without much padding.

    Args:
        rows: T.
        outputs: N.
        dtype: Of x and the weight.
        any_width: The device's matrix instruction allows it; it changes nothing but the time.
    """
    if dtype is torch.float32:
        return EXACT
    if not any_width or dtype is not torch.bfloat16:
        return ANYWHERE
    least = triton.cdiv(rows, HOPPER[-1].rows) * HOPPER[-1].rows
    for tile in HOPPER:
        count = triton.cdiv(rows, tile.rows)
        programs = count * triton.cdiv(outputs, tile.outputs)
        if programs >= ENOUGH_PROGRAMS and count * tile.rows <= MOST_PADDING * least:
            return tile
    return HOPPER[-1]


@triton.jit(do_not_specialize=["M"])
def _row_linear(
    x, weight, bias, out, M, N, K, x_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr,
    TALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write a tile of out [M, N] from x [M, K] and weight [N, K]. WHOLE: BK divides K."""
    program = tl.program_id(0)
    column_tiles = tl.cdiv(N, BN)
    first = program // (TALL * column_tiles) * TALL
    height = tl.minimum(tl.cdiv(M, BM) - first, TALL)
    rest = program % (TALL * column_tiles)
    row = ((first + rest % height) * BM + tl.arange(0, BM)).to(tl.int64)
    column = ((rest // height) * BN + tl.arange(0, BN)).to(tl.int64)
    inner = tl.arange(0, BK)
    alive = row < M
    x_at = x + row[:, None] * x_row + inner[None, :]
    # columns beyond N repeat the last one, and are not stored
    weight_at = weight + tl.minimum(column, N - 1)[None, :] * K + inner[:, None]
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        if WHOLE:
            left = tl.load(x_at + start, mask=alive[:, None], other=0.0)
            right = tl.load(weight_at + start)
        else:
            inside = inner < K - start
            left = tl.load(x_at + start, mask=alive[:, None] & inside[None, :], other=0.0)
            right = tl.load(weight_at + start, mask=inside[:, None], other=0.0)
        acc = tl.dot(left, right, acc, input_precision="ieee")
    stored = column < N
    if bias is not None:
        acc += tl.load(bias + column, mask=stored, other=0.0).to(tl.float32)[None, :]
    place = out + row[:, None] * N + column[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=alive[:, None] & stored[None, :])


def row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None = None,
    *,
    early: bool = False,
    any_width: bool = False,
) -> torch.Tensor:
    """See `Ops.row_linear`. Rows of x may lie apart; the weight lies in one piece.

    With `any_width` the tile follows the number of rows, see `tile_of`.
    """
    tile = tile_of(len(x), len(weight), x.dtype, any_width=any_width)
    return row_linear_by(tile, x, weight, bias, dtype, early=early)


def row_linear_by(
    tile: Tile,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None = None,
    *,
    early: bool = False,
) -> torch.Tensor:
    """Do the same with a given tile."""
    (rows, inputs), outputs = x.shape, len(weight)
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    out = x.new_empty(rows, outputs, dtype=dtype)
    if not rows:
        return out
    launch = launcher(
        _row_linear, BM=tile.rows, BN=tile.outputs, BK=tile.inputs,
        WHOLE=inputs % tile.inputs == 0, TALL=TALL, EARLY=early,
        num_warps=tile.warps, num_stages=tile.stages,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    launch((programs, 1, 1), x, weight, bias, out, rows, outputs, inputs, x.stride(0))
    return out
