"""Decode of short steps in one launch less: what `prepare` does, inside the decode kernel.

Each program norms and rotates the queries of its kv head itself. Keys and values of the step's own
token never pass through memory: the program of the last split takes them from the projection, and
stores them for later steps. So all that is read from pages was written by earlier steps, and with
EARLY the first tile is on its way while the projection is still computed.

Sources: as for the decode and the prepare kernel, whose pieces these are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .decode import leave_result, own_keys
from .last import merge_if_last
from .prepare import angles_at, turned
from .stored import decoded, encoded, store_codes
from .tile import attend_tile, capped, load_heads, take_tile


@triton.jit
def as_stored(heads, pages, scales):
    """Return heads as they will be read, and their codes, scales and zeros, as `load_heads`."""
    codes = heads
    scale = tl.zeros([1], tl.float16)
    zero = scale
    if scales is not None:
        codes, scale, zero = encoded(heads, pages.dtype.element_ty)
        packed: tl.constexpr = pages.dtype.element_ty == tl.uint8
        heads = decoded(codes, scale.to(tl.float32), zero.to(tl.float32), packed)
    return heads, codes, scale, zero


@triton.jit(
    do_not_specialize=["splits", "table_row"],
    do_not_specialize_on_alignment=[
        "positions", "write_page", "write_offset", "context", "table", "lse",
    ],
)  # fmt: skip
def newest_kernel(
    qkv,  # [B, (H + 2 G) * D], a row for each request
    positions,  # [B]
    write_page,  # [B]
    write_offset,  # [B]
    cos,
    sin,
    q_norm,  # [D] or None
    k_norm,
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # int32 [B, pages]
    context,  # [B]
    sinks,  # float32 [H], if HAS_SINKS
    out,  # [B, H, D]
    lse,  # float32 [B, H], if HAS_LSE
    partial,  # as in the decode kernel, and all others that it has
    sums,
    counters,
    qkv_row,
    angles,
    eps,
    out_token,
    out_head,
    lse_token,
    table_row,
    splits,
    scale,
    cap,
    SINGLE: tl.constexpr,
    LAST: tl.constexpr,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    ROTATED: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend over one split of one request and kv head. Grid: (G, B, splits)."""
    kv_head = tl.program_id(0)
    request = tl.program_id(1)
    split = tl.program_id(2)
    first, end, piece = own_keys(context, context, request, 1, splits, False, WINDOW, KEYS)
    low = first + split * piece
    high = tl.minimum(low + piece, end)
    if low >= high:  # a request that is too short for so many splits
        return
    older = tl.minimum(high, end - 1)
    dims = tl.arange(0, DIM)
    keys = low + tl.arange(0, KEYS)
    stored = keys < older
    pages_at = table + request.to(tl.int64) * table_row
    page = tl.load(pages_at + keys // PAGE, mask=stored, other=0)
    kind: tl.constexpr = qkv.dtype.element_ty
    scaled: tl.constexpr = k_scales is not None
    packed: tl.constexpr = k_pages.dtype.element_ty == tl.uint8
    k, k_scale, k_zero = load_heads(
        k_pages, k_scales, page, keys, kv_head, stored, kind, True, KV_HEADS, PAGE, DIM
    )
    v, v_scale, v_zero = load_heads(
        v_pages, v_scales, page, keys, kv_head, stored, kind, True, KV_HEADS, PAGE, DIM
    )
    place = request.to(tl.int64)
    c, s = 1.0, 0.0
    if ROTATED > 0:
        position = tl.load(positions + request).to(tl.int64)
        c, s = angles_at(position, cos, sin, angles, ROTATED, DIM)
    own_page = tl.load(write_page + request).to(tl.int64)
    own_offset = tl.load(write_offset + request).to(tl.int64)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()

    rows = tl.arange(0, ROWS)
    head = kv_head * GROUP + rows % GROUP
    alive = rows < GROUP
    row = qkv + place * qkv_row
    # [1, D] each, of the step's own token
    one = kv_head + tl.arange(0, 1)
    key = turned(
        row + KV_HEADS * GROUP * DIM, one, one < KV_HEADS, k_norm, c, s, eps,
        k_norm is not None, ROTATED, DIM,
    )  # fmt: skip
    value = tl.load(row + (KV_HEADS * (GROUP + 1) + one)[:, None] * DIM + dims[None, :])
    queries = turned(row, head, alive, q_norm, c, s, eps, q_norm is not None, ROTATED, DIM)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    best, total, acc = take_tile(
        queries, best, total, acc, k, v, stored[None, :], scale, cap, True, HAS_CAP, scaled, packed,
        k_scale, k_zero, v_scale, v_zero,
    )  # fmt: skip
    # the step's own token as later steps will read it
    key, key_codes, key_scale, key_zero = as_stored(key, k_pages, k_scales)
    value, own_codes, own_scale, own_zero = as_stored(value, v_pages, v_scales)
    last = tl.zeros([ROWS], tl.int32) + end  # all older keys are seen
    for tile in range(low + KEYS, older, KEYS):
        keys = tile + tl.arange(0, KEYS)
        best, total, acc = attend_tile(
            queries, best, total, acc, k_pages, v_pages, k_scales, v_scales, pages_at, keys,
            first, older, last, kv_head, scale, cap, True, 0, HAS_CAP, KV_HEADS, PAGE, DIM,
        )  # fmt: skip

    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
    if HAS_CAP:
        score = capped(score, cap) * 1.4426950408889634
    score = tl.where(high == end, score, float("-inf"))
    larger = tl.maximum(best, score)
    shrink = tl.exp2(best - larger)
    weight = tl.exp2(score - larger)
    total = total * shrink + weight
    acc = acc * shrink[:, None] + weight.to(v.dtype).to(tl.float32)[:, None] * value.to(tl.float32)
    if high == end:
        if scaled:
            slot = (own_page * KV_HEADS + one) * PAGE + own_offset
            there = one < KV_HEADS
            store_codes(k_pages, k_scales, slot, key_codes, key_scale, key_zero, there, DIM)
            store_codes(v_pages, v_scales, slot, own_codes, own_scale, own_zero, there, DIM)
        else:
            to = ((own_page * KV_HEADS + one) * PAGE + own_offset)[:, None] * DIM + dims[None, :]
            tl.store(k_pages + to, key)
            tl.store(v_pages + to, value)
    leave_result(
        larger, total, acc, alive, head, place, request, kv_head, split, splits, rows, sinks, out,
        lse, partial, sums, out_token, out_head, lse_token,
        SINGLE, GROUP, KV_HEADS, DIM, HAS_SINKS, HAS_LSE,
    )  # fmt: skip
    if LAST:
        merge_if_last(
            counters, tl.cdiv(end - first, piece), partial, sums, None, 0, request, kv_head, splits,
            request, 1, sinks, out, lse, out_token, out_head, lse_token,
            GROUP, GROUP, KV_HEADS, DIM, False, HAS_SINKS, HAS_LSE,
        )  # fmt: skip
