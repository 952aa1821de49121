"""Copy a stretch of keys and values out of their pages, to where dense kernels can read them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["table_row", "first", "count", "stored"],
    do_not_specialize_on_alignment=["table"],
)
def gather_kernel(
    k_pages,  # [pages, G, P, D]
    v_pages,
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
    source = ((page.to(tl.int64) * KV_HEADS + head) * PAGE + place % PAGE)[:, None] * DIM + dims
    target = ((request * count + token) * KV_HEADS + head)[:, None] * DIM + dims
    key = tl.load(k_pages + source, mask=alive[:, None], other=0.0)
    value = tl.load(v_pages + source, mask=alive[:, None], other=0.0)
    tl.store(keys + target, key, mask=wanted[:, None])
    tl.store(values + target, value, mask=wanted[:, None])
