"""Attention of few query tokens over many keys: each request's keys are cut into splits.

Source: Dao et al., "Flash-Decoding for long-context inference", 2023; Hong et al., FlashDecoding++,
arXiv 2311.01282. Query heads of one kv head are rows of one product, so that keys are read once.
Lengths are read on the device: a launch serves every length up to the page table's width. Keys of a
prefix that the cascade kernel attends to are left out, and its results merged in.

With EARLY a kernel begins while the one before it ends, and lets the next do so only when that one
has ended. So what it reads before it waits may be written by any kernel but the one before it: here
lengths, which are written before a model's first layer.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .last import merge_if_last, prefix_pieces, take_pieces
from .tile import attend_tile, log_sum, with_sink

PIECES = tl.constexpr(4)
"""Of a shared prefix, loaded at a time."""


@triton.jit
def own_keys(
    context, pieces, request, count, splits, SHARED: tl.constexpr, WINDOW: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Say how a request's own keys are cut: (first, end, keys of a split)."""
    # [0 ... first) out of every window, or shared   [first ... end) cut evenly, in whole tiles
    before = tl.load(context + request).to(tl.int32)
    end = before + count
    first = 0
    if SHARED:
        first = tl.load(pieces + request * 4)
    if WINDOW > 0:
        first = tl.maximum(before + 1 - WINDOW, 0)
    return first, end, tl.cdiv(tl.cdiv(end - first, splits), KEYS) * KEYS


@triton.jit
def leave_result(
    best,  # [ROWS] of the running softmax, and so on
    total,
    acc,  # [ROWS, D]
    alive,  # [ROWS] which rows are query tokens
    head,  # [ROWS]
    place,  # [ROWS] or one for all, of the token in the step
    request,
    kv_head,
    split,
    splits,
    rows,  # [0 ... ROWS)
    sinks,
    out,
    lse,
    partial,
    sums,
    out_token,
    out_head,
    lse_token,
    SINGLE: tl.constexpr,
    USED: tl.constexpr,  # rows of a split's result
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Store what a program found: the result, or a piece of it for the merge kernel."""
    dims = tl.arange(0, DIM)
    if SINGLE:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=alive, other=0.0)
            best, total, shrink = with_sink(best, total, sink)
            acc = acc * shrink[:, None]
        out_at = out + (place * out_token + head * out_head)[:, None] + dims[None, :]
        # rows past the last token may have seen nothing: they are not stored
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=alive[:, None])
        if HAS_LSE:
            tl.store(lse + place * lse_token + head, log_sum(best, total), mask=alive)
    else:
        used = rows < USED
        slot = ((request * KV_HEADS + kv_head) * splits + split) * USED + rows
        total = tl.where(total > 0, total, 1.0)  # of a row that sees none of these keys
        tl.store(sums + slot, best + tl.log2(total), mask=used)
        slot_at = partial + slot.to(tl.int64)[:, None] * DIM + dims[None, :]
        tl.store(slot_at, acc / total[:, None], mask=used[:, None])


@triton.jit(
    do_not_specialize=["splits", "table_row", "prefix_at"],
    do_not_specialize_on_alignment=["query_start", "context", "table", "lse", "pieces"],
)
def decode_kernel(
    q,  # [T, H, D]
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # int32 [B, pages]
    query_start,  # [B + 1]
    context,  # [B]
    sinks,  # float32 [H], if HAS_SINKS
    out,  # [T, H, D]
    lse,  # float32 [T, H], if HAS_LSE
    partial,  # float32 [B, G, splits, QUERIES * GROUP, D], unless SINGLE
    sums,  # float32 [B, G, splits, QUERIES * GROUP], unless SINGLE
    pieces,  # int32 [B, 4], if SHARED: see `merge_kernel`
    counters,  # int32 [B, G] zeros, if LAST
    q_token,  # elements from one token to the next
    q_head,
    out_token,
    out_head,
    lse_token,
    table_row,
    splits,
    prefix_at,  # where in `sums` the cascade's results begin
    scale,
    cap,
    SINGLE: tl.constexpr,  # no split but one; pieces of a shared prefix are merged here
    LAST: tl.constexpr,  # the program of a request that ends last merges all pieces
    QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend over one split of one request and kv head. Grid: (G, B, splits)."""
    kv_head = tl.program_id(0)
    request = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_start + request).to(tl.int32)
    count = tl.load(query_start + request + 1).to(tl.int32) - start
    first, end, piece = own_keys(context, pieces, request, count, splits, SHARED, WINDOW, KEYS)
    low = first + split * piece
    high = tl.minimum(low + piece, end)
    if low >= high:  # a request that is too short for so many splits
        return
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    alive = (rows < QUERIES * GROUP) & (token < count)
    place = (start + token).to(tl.int64)
    q_at = q + place[:, None] * q_token + head[:, None] * q_head + dims[None, :]
    queries = tl.load(q_at, mask=alive[:, None], other=0.0)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    if SINGLE and SHARED:
        slot, stride, number = prefix_pieces(pieces, request, head, prefix_at, KV_HEADS, GROUP)
        best, total, acc = take_pieces(
            best, total, acc, partial, sums, slot, stride, number, alive, PIECES, DIM
        )
    last = end - count + token
    pages_at = table + request.to(tl.int64) * table_row
    for at in range(low, high, KEYS):
        keys = at + tl.arange(0, KEYS)
        best, total, acc = attend_tile(
            queries,
            best,
            total,
            acc,
            k_pages,
            v_pages,
            k_scales,
            v_scales,
            pages_at,
            keys,
            first,
            high,
            last,
            kv_head,
            scale,
            cap,
            True,
            WINDOW,
            HAS_CAP,
            KV_HEADS,
            PAGE,
            DIM,
        )

    leave_result(
        best,
        total,
        acc,
        alive,
        head,
        place,
        request,
        kv_head,
        split,
        splits,
        rows,
        sinks,
        out,
        lse,
        partial,
        sums,
        out_token,
        out_head,
        lse_token,
        SINGLE,
        QUERIES * GROUP,
        KV_HEADS,
        DIM,
        HAS_SINKS,
        HAS_LSE,
    )
    if LAST:
        merge_if_last(
            counters, tl.cdiv(end - first, piece), partial, sums, pieces, prefix_at, request,
            kv_head, splits, start, count, sinks, out, lse, out_token, out_head, lse_token,
            QUERIES * GROUP, GROUP, KV_HEADS, DIM, SHARED, HAS_SINKS, HAS_LSE,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["splits", "prefix_at"],
    do_not_specialize_on_alignment=["query_start", "context", "lse", "pieces"],
)
def merge_kernel(
    partial,  # as the decode kernel left it, then as the cascade kernel left it
    sums,
    pieces,  # int32 [B, 4], if SHARED: shared tokens; request's row in the cascade's results for
    # the first piece of the prefix, rows from there to the next piece, number of pieces
    query_start,
    context,
    sinks,
    out,
    lse,
    out_token,
    out_head,
    lse_token,
    splits,
    prefix_at,  # where in `sums` the cascade's results begin
    QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PART: tl.constexpr,  # elements of the head that one program merges
    SPLITS: tl.constexpr,  # a power of two, at least `splits` and the pieces of a prefix together
    KEYS: tl.constexpr,  # as in the decode kernel, and the next two
    WINDOW: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Weigh the splits of one query token and head. Grid: (H * QUERIES, B, DIM / PART)."""
    row_of_all = tl.program_id(0)
    request = tl.program_id(1)
    kv_head = row_of_all // (QUERIES * GROUP)
    row = row_of_all % (QUERIES * GROUP)
    head = kv_head * GROUP + row % GROUP
    start = tl.load(query_start + request).to(tl.int32)
    count = tl.load(query_start + request + 1).to(tl.int32) - start
    first, end, piece = own_keys(context, pieces, request, count, splits, SHARED, WINDOW, KEYS)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if row // GROUP < count:
        split = tl.arange(0, SPLITS)
        dims = tl.program_id(2) * PART + tl.arange(0, PART)
        slot = ((request * KV_HEADS + kv_head) * splits + split) * (QUERIES * GROUP) + row
        used = split < tl.cdiv(end - first, piece)
        if SHARED:
            of_request = pieces + request * 4
            piece_row = tl.load(of_request + 1) + (split - splits) * tl.load(of_request + 2)
            prefix = prefix_at + piece_row * (KV_HEADS * GROUP) + head
            slot = tl.where(split < splits, slot, prefix)
            used = used | ((split >= splits) & (split < splits + tl.load(of_request + 3)))
        each = tl.load(sums + slot, mask=used, other=float("-inf"))
        values = tl.load(
            partial + slot.to(tl.int64)[:, None] * DIM + dims[None, :],
            mask=used[:, None],
            other=0.0,
        )
        best = tl.max(each, 0)
        weights = tl.exp2(each - best)
        total = tl.sum(weights, 0)
        result = tl.sum(values * weights[:, None], 0)
        if HAS_SINKS:
            best, total, shrink = with_sink(best, total, tl.load(sinks + head))
            result = result * shrink
        place = (start + row // GROUP).to(tl.int64)
        result = (result / total).to(out.dtype.element_ty)
        tl.store(out + place * out_token + head * out_head + dims, result)
        if HAS_LSE:
            tl.store(lse + place * lse_token + head, log_sum(best, total))
