"""Copy a stretch of keys and values out of their pages, to where dense kernels can read them."""

from __future__ import annotations

import triton
import triton.language as tl

from .stored import decoded, load_codes


@triton.jit
def dense_heads(pages, scales, slots, alive, kind: tl.constexpr, DIM: tl.constexpr):
    """Return heads [TOKENS, D] of any form, zeros where they are not alive."""
    if scales is None:
        source = slots[:, None] * DIM + tl.arange(0, DIM)[None, :]
        heads = tl.load(pages + source, mask=alive[:, None], other=0.0)
    else:
        codes, scale, zero = load_codes(pages, scales, slots, alive, kind, True, DIM)
        heads = decoded(codes, scale, zero, pages.dtype.element_ty == tl.uint8).to(kind)
    return heads


@triton.jit(
    do_not_specialize=["table_row", "first", "count", "stored"],
    do_not_specialize_on_alignment=["table"],
)
def gather_kernel(
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # int32 [B, pages]
    keys,  # [B, count, G, D]
    values,
    table_row,
    first,  # token of each request that comes first
    count,  # tokens of each
    stored,  # tokens from here on were never written: zeros stand for them
    KV_HEADS: tl.constexpr,
    TOKENS: tl.constexpr,  # of one program
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
):
    """Copy some tokens of one head. Grid: (count / TOKENS, G, B)."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    dims = tl.arange(0, DIM)
    wanted = token < count
    place = first + token
    alive = wanted & (place < stored)
    page = tl.load(table + request * table_row + place // PAGE, mask=alive, other=0)
    slots = (page.to(tl.int64) * KV_HEADS + head) * PAGE + place % PAGE
    target = ((request * count + token) * KV_HEADS + head)[:, None] * DIM + dims
    key = dense_heads(k_pages, k_scales, slots, alive, keys.dtype.element_ty, DIM)
    value = dense_heads(v_pages, v_scales, slots, alive, keys.dtype.element_ty, DIM)
    tl.store(keys + target, key, mask=wanted[:, None])
    tl.store(values + target, value, mask=wanted[:, None])
