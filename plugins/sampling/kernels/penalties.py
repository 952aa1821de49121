"""Penalties over whole rows, from the number of times that a slot has seen each token.

The formulas are those of the other form, which changes single logits; a device is faster at reading
a row of counts than at being told which of them matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from camshaft.kernel_launch import launcher

if TYPE_CHECKING:
    from camshaft.contracts.sampling import RowContext

CHUNK = 4096
"""Logits that a program changes."""


# strength:  [0, R) presence   [R, 2 R) frequency   [2 R, 3 R) repetition
@triton.jit(do_not_specialize_on_alignment=["slots"])
def penalise_kernel(
    logits, out, slots, requests, offsets, drafts, strength, cells, row_stride, R,
    V: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write a chunk of logits, as they are under its slot's penalties, to out [B, V]."""
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64)
    column = (program % CHUNKS) * CHUNK + tl.arange(0, CHUNK)
    inside = column < V
    slot = tl.load(slots + row)
    presence = tl.load(strength + slot)
    frequency = tl.load(strength + R + slot)
    repetition = tl.load(strength + 2 * R + slot)
    value = tl.load(logits + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    if (presence != 0) | (frequency != 0) | (repetition != 1):
        # a cell counts outputs in twos; its lowest bit says that the prompt holds the token
        cell = tl.load(cells + slot * V + column, mask=inside, other=0)
        if K > 0:  # the drafts before a row count as outputs
            offset = tl.load(offsets + row)
            own = drafts + tl.load(requests + row) * K
            for place in tl.static_range(K):
                draft = tl.load(own + place)
                cell += tl.where((column == draft) & (place < offset), 2, 0)
        repeated = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
        value = tl.where(cell > 0, repeated, value)
        outputs = cell >> 1
        value = value - frequency * outputs - tl.where(outputs > 0, presence, 0.0)
    tl.store(out + row * V + column, value, mask=inside)


@triton.jit
def count_kernel(tokens, counts, slots, cells, width, V: tl.constexpr):
    """Count the tokens that a slot was given."""
    request = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1)
    count = 1
    if counts is not None:
        count = tl.load(counts + request).to(tl.int32)
    if place < count:
        token = tl.load(tokens + request * width + place)
        tl.atomic_add(cells + tl.load(slots + request) * V + token, 2)


def penalise(
    logits: torch.Tensor,
    out: torch.Tensor,
    slots: torch.Tensor,
    rows: RowContext | None,
    strength: torch.Tensor,
    cells: torch.Tensor,
) -> None:
    """Write penalised logits to `out`, which may be `logits`.

    Args:
        logits: [B, V], rows may lie apart.
        out: float32 [B, V].
        slots: int64 [B], of each row.
        rows: Whose they are, for their drafts; None for no drafts.
        strength: float32 [3, R], presence, frequency and repetition.
        cells: int32 [R, V].
    """
    count, vocab = logits.shape
    assert logits.stride(1) == 1
    assert out.is_contiguous()
    most = 0 if rows is None else rows.drafts.shape[1]
    drafts: tuple[torch.Tensor | None, ...] = (None, None, None)
    if rows is not None and most:
        drafts = (rows.row_request, rows.offsets, rows.drafts.contiguous())
    chunks = triton.cdiv(vocab, CHUNK)
    launch = launcher(penalise_kernel, V=vocab, K=most, CHUNKS=chunks, CHUNK=CHUNK, num_warps=8)
    launch(
        (count * chunks, 1, 1),
        logits, out, slots, *drafts, strength, cells, logits.stride(0), strength.shape[1],
    )  # fmt: skip


def count_tokens(
    tokens: torch.Tensor, counts: torch.Tensor | None, slots: torch.Tensor, cells: torch.Tensor
) -> None:
    """Count the first `counts` [S] of `tokens` [S, K], or all of them, in the cells of `slots`."""
    assert tokens.is_contiguous()
    launch = launcher(count_kernel, V=cells.shape[1])
    launch((*tokens.shape, 1), tokens, counts, slots, cells, tokens.shape[1])
