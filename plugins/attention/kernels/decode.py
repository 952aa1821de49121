"""Attention of few query tokens over many keys: each request's keys are cut into splits.

Source: Dao et al., "Flash-Decoding for long-context inference", 2023; Hong et al., FlashDecoding++,
arXiv 2311.01282. Query heads of one kv head are rows of one product, so that keys are read once.
Lengths are read on the device: a launch serves every length up to the page table's width. Keys of a
prefix that the cascade kernel attends to are left out, and its results merged in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import attend_tile, log_sum, with_sink


@triton.jit(
    do_not_specialize=["splits", "table_row"],
    do_not_specialize_on_alignment=["query_start", "context", "table", "lse", "pieces"],
)
def decode_kernel(
    q,  # [T, H, D]
    k_pages,  # [pages, G, P, D]
    v_pages,
    table,  # int32 [B, pages]
    query_start,  # [B + 1]
    context,  # [B]
    sinks,  # float32 [H], if HAS_SINKS
    out,  # [T, H, D]
    lse,  # float32 [T, H], if HAS_LSE
    partial,  # float32 [B, G, splits, QUERIES * GROUP, D], unless SINGLE
    sums,  # float32 [B, G, splits, QUERIES * GROUP], unless SINGLE
    pieces,  # int32 [B, 4], if SHARED: see `merge_kernel`
    q_token,  # elements from one token to the next
    q_head,
    out_token,
    out_head,
    lse_token,
    table_row,
    splits,
    scale,
    cap,
    SINGLE: tl.constexpr,
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
):
    """Attend over one split of one request and kv head. Grid: (G, B, splits)."""
    kv_head = tl.program_id(0)
    request = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_start + request).to(tl.int32)
    count = tl.load(query_start + request + 1).to(tl.int32) - start
    before = tl.load(context + request).to(tl.int32)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    alive = (rows < QUERIES * GROUP) & (token < count)
    place = (start + token).to(tl.int64)
    q_at = q + place[:, None] * q_token + head[:, None] * q_head + dims[None, :]
    queries = tl.load(q_at, mask=alive[:, None], other=0.0)

    # [0 ... first) out of every window, or shared   [first ... end) cut evenly, in whole tiles
    end = before + count
    first = 0
    if SHARED:
        first = tl.load(pieces + request * 4)
    if WINDOW > 0:
        first = tl.maximum(before + 1 - WINDOW, 0)
    piece = tl.cdiv(tl.cdiv(end - first, splits), KEYS) * KEYS
    low = first + split * piece
    high = tl.minimum(low + piece, end)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    last = before + token
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

    if SINGLE:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=alive, other=0.0)
            best, total, shrink = with_sink(best, total, sink)
            acc = acc * shrink[:, None]
        out_at = out + place[:, None] * out_token + head[:, None] * out_head + dims[None, :]
        # rows past the last token may have seen nothing: they are not stored
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_at, result.to(out.dtype.element_ty), mask=alive[:, None])
        if HAS_LSE:
            tl.store(lse + place * lse_token + head, log_sum(best, total), mask=alive)
    else:
        used = rows < QUERIES * GROUP
        slot = ((request * KV_HEADS + kv_head) * splits + split) * (QUERIES * GROUP) + rows
        total = tl.where(total > 0, total, 1.0)  # without keys `best` alone says so
        tl.store(sums + slot, best + tl.log2(total), mask=used)
        if low < high:
            result = acc / total[:, None]
            slot_at = partial + slot.to(tl.int64)[:, None] * DIM + dims[None, :]
            tl.store(slot_at, result, mask=used[:, None])


@triton.jit(
    do_not_specialize=["splits", "prefix_at"],
    do_not_specialize_on_alignment=["query_start", "lse", "pieces"],
)
def merge_kernel(
    partial,  # as the decode kernel left it, then as the cascade kernel left it
    sums,
    pieces,  # int32 [B, 4], if SHARED: shared tokens; request's row in the cascade's results for
    # the first piece of the prefix, rows from there to the next piece, number of pieces
    query_start,
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
    SHARED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Weigh the splits of one query token and head. Grid: (H * QUERIES, B, DIM / PART)."""
    row_of_all = tl.program_id(0)
    request = tl.program_id(1)
    kv_head = row_of_all // (QUERIES * GROUP)
    row = row_of_all % (QUERIES * GROUP)
    head = kv_head * GROUP + row % GROUP
    start = tl.load(query_start + request).to(tl.int32)
    count = tl.load(query_start + request + 1).to(tl.int32) - start
    if row // GROUP < count:
        split = tl.arange(0, SPLITS)
        dims = tl.program_id(2) * PART + tl.arange(0, PART)
        slot = ((request * KV_HEADS + kv_head) * splits + split) * (QUERIES * GROUP) + row
        used = splits
        if SHARED:
            of_request = pieces + request * 4
            piece_row = tl.load(of_request + 1) + (split - splits) * tl.load(of_request + 2)
            prefix = prefix_at + piece_row * (KV_HEADS * GROUP) + head
            slot = tl.where(split < splits, slot, prefix)
            used = splits + tl.load(of_request + 3)
        each = tl.load(sums + slot, mask=split < used, other=float("-inf"))
        best = tl.max(each, 0)
        weights = tl.exp2(each - best)
        total = tl.sum(weights, 0)
        # splits without keys stored no values
        values = tl.load(
            partial + slot.to(tl.int64)[:, None] * DIM + dims[None, :],
            mask=(each > float("-inf"))[:, None],
            other=0.0,
        )
        result = tl.sum(values * weights[:, None], 0)
        if HAS_SINKS:
            best, total, shrink = with_sink(best, total, tl.load(sinks + head))
            result = result * shrink
        place = (start + row // GROUP).to(tl.int64)
        result = (result / total).to(out.dtype.element_ty)
        tl.store(out + place * out_token + head * out_head + dims, result)
        if HAS_LSE:
            tl.store(lse + place * lse_token + head, log_sum(best, total))
