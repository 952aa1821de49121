"""The choice of a token for each row, as two to five launches and nothing that the host waits for.

Rows of one launch may want different things: what a row wants is read from its slot. So a launch
can be recorded, and replayed for other requests. A kernel returns at once for rows that it does not
concern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from camshaft.kernel_launch import launcher
from camshaft.plugins.sampling.params import Method

from .choose import choose_kernel
from .masses import LEVELS, LIST, list_kernel, sums_kernel
from .tops import BLOCK, begin_kernel, tops_kernel

if TYPE_CHECKING:
    from camshaft.plugins.sampling.params import Tables

CHUNKS = ((8, 1024), (2**31, 4096))
"""(up to how many rows, logits that a program reads): a few rows need many programs."""

PIECE = 2048
"""Logits that a program looks through for candidates, at most: it needs many registers."""

MOST_IDS = 2**18
"""Largest vocabulary, as in the other forms of the choice."""

UNSAID_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""Low bits of a float32 that are the same for all numbers of a dtype that have the same sign."""


class Chosen(NamedTuple):
    """What was chosen.

    Attributes:
        tokens: int64 [B], 0 where there is none.
        finite: bool [B], whether the logits were a ground to choose on.
    """

    tokens: torch.Tensor
    finite: torch.Tensor


class _Work(NamedTuple):
    """What one kernel leaves to the next, for B rows of C chunks; None where nobody needs it.

    Attributes:
        tops: float32 [B, blocks], the best of each block.
        bests: float32 [B], the best of each row.
        totals: int64 [B, C], mass.
        bounds: int32 [B], upper half of the key below which the top-k of a row does not reach.
        found: int32 [B], candidates.
        shares: float32 [B, C, levels], odds above each level.
        orders: int64 [B, places], of candidates.
        listed: float32 [B, places], their odds.
    """

    tops: torch.Tensor
    bests: torch.Tensor | None
    totals: torch.Tensor | None
    bounds: torch.Tensor | None
    found: torch.Tensor | None
    shares: torch.Tensor | None
    orders: torch.Tensor | None
    listed: torch.Tensor | None


def choose(
    method: Method,
    logits: torch.Tensor,
    slots: torch.Tensor,
    offsets: torch.Tensor | None,
    tables: Tables,
    *,
    advance: bool,
) -> Chosen:
    """Choose a token for each row.

    Args:
        method: Of the most demanding row.
        logits: float32, float16 or bfloat16 [B, V], rows may lie apart; not changed.
        slots: int64 [B], of each row.
        offsets: int64 [B], place of the row among its request's rows, or None for zeros.
        tables: Of all slots.
        advance: Add 1 to the tokens produced of each row's slot.
    """
    rows, vocab = logits.shape
    assert vocab <= MOST_IDS
    assert logits.stride(1) == 1
    assert tables.floats.is_contiguous()
    assert tables.integers.is_contiguous()
    slots = slots.contiguous()
    chosen = Chosen(slots.new_empty(rows), slots.new_empty(rows, dtype=torch.bool))
    if not rows:
        return chosen
    chunk = next(size for most, size in CHUNKS if rows <= most)
    chunks = triton.cdiv(vocab, chunk)
    work = _work(method, rows, chunks, chunk, logits.device)
    stride, all_slots = logits.stride(0), tables.floats.shape[1]
    shape = {"V": vocab, "CHUNKS": chunks, "CHUNK": chunk}
    launcher(tops_kernel, **shape, num_warps=chunk // 1024)(
        (rows * chunks, 1, 1), logits, work.tops, stride
    )
    blocks = work.tops.shape[1]
    begin = launcher(
        begin_kernel, V=vocab, BLOCKS=blocks, PADDED=triton.next_power_of_2(blocks),
        BOUND=method is Method.DRAW_CUT, ADVANCE=advance and method is Method.GREEDY, num_warps=2,
    )  # fmt: skip
    begin(
        (rows, 1, 1),
        logits, work.tops, slots, tables.integers, *chosen, work.bests, work.bounds, work.found,
        stride, all_slots,
    )  # fmt: skip
    if method is not Method.GREEDY:
        _draw(method, logits, slots, offsets, tables, chosen, work, chunk, advance=advance)
    return chosen


def _draw(
    method: Method,
    logits: torch.Tensor,
    slots: torch.Tensor,
    offsets: torch.Tensor | None,
    tables: Tables,
    chosen: Chosen,
    work: _Work,
    chunk: int,
    *,
    advance: bool,
) -> None:
    """Replace the greedy tokens of the rows that draw theirs."""
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, chunk)
    cut = method is Method.DRAW_CUT
    own = (*tables, work.bests, chosen.finite)
    last = (logits.stride(0), tables.floats.shape[1])
    shape = {"V": vocab, "CHUNKS": chunks, "CHUNK": chunk}
    many = {"SHIFT": UNSAID_BITS[logits.dtype], "PADDED": triton.next_power_of_2(chunks)}
    warps = 4 if chunk == 1024 else 8
    launcher(sums_kernel, **shape, CUT=cut, num_warps=warps)(
        (rows * chunks, 1, 1), logits, slots, *own, work.totals, work.shares, *last
    )
    if cut:
        piece = min(PIECE, chunk)
        pieces = triton.cdiv(vocab, piece)
        fill = launcher(
            list_kernel, V=vocab, PIECES=pieces, PIECE=piece, CHUNKS=chunks, **many,
            num_warps=warps,
        )  # fmt: skip
        fill(
            (rows * pieces, 1, 1),
            logits, slots, *own, work.bounds, work.totals, work.shares, work.found, work.orders,
            work.listed, *last,
        )  # fmt: skip
    launcher(choose_kernel, **shape, **many, CUT=cut, ADVANCE=advance, num_warps=8)(
        (rows, 1, 1),
        logits, slots, offsets, *own, work.totals, work.found, work.orders, work.listed,
        chosen.tokens, *last,
    )  # fmt: skip


def _work(method: Method, rows: int, chunks: int, chunk: int, device: torch.device) -> _Work:
    def room(least: Method, dtype: torch.dtype, *shape: int) -> torch.Tensor | None:
        return torch.empty(rows, *shape, dtype=dtype, device=device) if method >= least else None

    tops = torch.empty(rows, chunks * (chunk // BLOCK.value), device=device)
    return _Work(
        tops=tops,
        bests=room(Method.DRAW, torch.float32),
        totals=room(Method.DRAW, torch.int64, chunks),
        bounds=room(Method.DRAW_CUT, torch.int32),
        found=room(Method.DRAW_CUT, torch.int32),
        shares=room(Method.DRAW_CUT, torch.float32, chunks, LEVELS.value),
        orders=room(Method.DRAW_CUT, torch.int64, LIST.value),
        listed=room(Method.DRAW_CUT, torch.float32, LIST.value),
    )
