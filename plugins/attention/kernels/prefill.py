"""Attention of many query tokens: tiles of queries over paged keys.

Source: Dao, FlashAttention-2, arXiv 2307.08691. Departures: keys are found through a page table,
and a tile's rows are tokens times the query heads of one kv head, so that a short chunk over a long
context fills its rows. Requests of any length share a launch through a list of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import attend_tile, log_sum, with_sink


@triton.jit(
    do_not_specialize=["table_row"],
    do_not_specialize_on_alignment=["query_start", "context", "table", "tiles", "lse"],
)
def prefill_kernel(
    q,  # [T, H, D]
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # int32 [B, pages]
    query_start,  # [B + 1]
    context,  # [B]
    tiles,  # int32 [n, 2]: request, and the first of its tokens
    sinks,  # float32 [H], if HAS_SINKS
    out,  # [T, H, D]
    lse,  # float32 [T, H], if HAS_LSE
    q_token,  # elements from one token to the next
    q_head,
    out_token,
    out_head,
    lse_token,
    table_row,
    scale,
    cap,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    TOKENS: tl.constexpr,  # of a tile
    ROWS: tl.constexpr,  # a power of two, at least TOKENS * GROUP
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Attend with one tile of query tokens. Grid: (tiles, G)."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    request = tl.load(tiles + 2 * tile)
    skipped = tl.load(tiles + 2 * tile + 1)
    start = tl.load(query_start + request).to(tl.int32)
    count = tl.load(query_start + request + 1).to(tl.int32) - start
    before = tl.load(context + request).to(tl.int32)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    token = skipped + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    alive = (rows < TOKENS * GROUP) & (token < count)
    place = (start + token).to(tl.int64)
    q_at = q + place[:, None] * q_token + head[:, None] * q_head + dims[None, :]
    queries = tl.load(q_at, mask=alive[:, None], other=0.0)

    # [low ... full) seen by every row of the tile   [full ... end) needs a mask
    end = before + tl.minimum(skipped + TOKENS, count)
    first = 0
    low = 0
    full = (before + skipped + 1) // KEYS * KEYS
    if WINDOW > 0:
        first = tl.maximum(before + skipped + 1 - WINDOW, 0)
        full = first // KEYS * KEYS
        low = full

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    last = before + token
    pages_at = table + request.to(tl.int64) * table_row
    for at in range(low, full, KEYS):
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
            end,
            last,
            kv_head,
            scale,
            cap,
            False,
            WINDOW,
            HAS_CAP,
            KV_HEADS,
            PAGE,
            DIM,
        )
    # Without a window few tiles remain. Were this loop pipelined as well, ptxas would serialise the
    # matrix instructions of both (C7515, triton 3.6).
    stages: tl.constexpr = None if WINDOW > 0 else 1
    for at in tl.range(full, end, KEYS, num_stages=stages):
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
            end,
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
