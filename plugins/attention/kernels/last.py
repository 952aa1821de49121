"""Take pieces of a result into the program that needs them last, without a kernel for the merge.

Sources: Milakov and Gimelshein, arXiv 1805.02867, for the identity; NVIDIA's sample
`threadFenceReduction` for the counter by which a program finds out that it is the last. Pieces are
read past the first-level cache: other multiprocessors wrote them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import log_sum, with_sink

CHUNK = tl.constexpr(16)
"""Pieces that the last program loads at a time, each of"""
ROWS_AT_ONCE = tl.constexpr(4)
"""so many rows."""


@triton.jit
def take_pieces(
    best,  # [R] of a running softmax in base 2
    total,  # [R]
    acc,  # [R, D]
    partial,  # float32 [.., D] results
    sums,  # float32 [..] logs to base 2 of their sums
    slot,  # [R] of each row's first piece
    stride,  # from one piece to the next
    count,  # pieces
    alive,  # [R] which rows have any
    CHUNK: tl.constexpr,  # pieces that are loaded at a time
    DIM: tl.constexpr,
):
    """Take pieces into running softmaxes, in the order of their numbers."""
    dims = tl.arange(0, DIM)
    for at in range(0, count, CHUNK):
        piece = at + tl.arange(0, CHUNK)
        there = alive[:, None] & (piece < count)[None, :]
        place = slot[:, None] + (piece * stride)[None, :]
        each = tl.load(sums + place, mask=there, other=float("-inf"), cache_modifier=".cg")
        values = tl.load(
            partial + place.to(tl.int64)[:, :, None] * DIM + dims[None, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        larger = tl.maximum(best, tl.max(each, 1))
        base = tl.where(larger == float("-inf"), 0.0, larger)  # of rows without pieces
        weights = tl.exp2(each - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.sum(values * weights[:, :, None], 1)
        best = larger
    return best, total, acc


@triton.jit
def prefix_pieces(
    pieces, request, head, prefix_at, KV_HEADS: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Return where a request's pieces of a shared prefix lie: slot [R], stride, count."""
    of_request = pieces + request * 4
    heads: tl.constexpr = KV_HEADS * GROUP
    slot = prefix_at + tl.load(of_request + 1) * heads + head
    return slot, tl.load(of_request + 2) * heads, tl.load(of_request + 3)


@triton.jit
def merge_if_last(
    counters,  # int32 [B, G], zeros before and after
    arrivals,  # programs of this request and kv head
    partial,
    sums,
    pieces,  # int32 [B, 4], if SHARED
    prefix_at,
    request,
    kv_head,
    splits,
    start,  # first token of the request in the step
    count,  # its tokens
    sinks,
    out,
    lse,
    out_token,
    out_head,
    lse_token,
    USED: tl.constexpr,  # rows of a piece
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Count this program's arrival, and merge all pieces if it was the last one to arrive."""
    pair = request * KV_HEADS + kv_head
    tl.debug_barrier()  # one thread counts for all: their pieces must be stored by then
    arrived = tl.atomic_add(counters + pair, 1, sem="acq_rel", scope="gpu")
    if arrived == arrivals - 1:
        dims = tl.arange(0, DIM)
        for low in range(0, USED, ROWS_AT_ONCE):
            row = low + tl.arange(0, ROWS_AT_ONCE)
            alive = (row < USED) & (row // GROUP < count)
            head = kv_head * GROUP + row % GROUP
            best = tl.full([ROWS_AT_ONCE], float("-inf"), tl.float32)
            total = tl.zeros([ROWS_AT_ONCE], tl.float32)
            acc = tl.zeros([ROWS_AT_ONCE, DIM], tl.float32)
            slot = pair * splits * USED + row
            best, total, acc = take_pieces(
                best, total, acc, partial, sums, slot, USED, arrivals, alive, CHUNK, DIM
            )
            if SHARED:
                slot, stride, number = prefix_pieces(
                    pieces, request, head, prefix_at, KV_HEADS, GROUP
                )
                best, total, acc = take_pieces(
                    best, total, acc, partial, sums, slot, stride, number, alive, CHUNK, DIM
                )
            if HAS_SINKS:
                sink = tl.load(sinks + head, mask=alive, other=0.0)
                best, total, shrink = with_sink(best, total, sink)
                acc = acc * shrink[:, None]
            place = (start + row // GROUP).to(tl.int64)
            out_at = out + (place * out_token + head * out_head)[:, None] + dims[None, :]
            result = acc / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out_at, result.to(out.dtype.element_ty), mask=alive[:, None])
            if HAS_LSE:
                tl.store(lse + place * lse_token + head, log_sum(best, total), mask=alive)
        tl.store(counters + pair, 0)  # for the next layer, or a replay
