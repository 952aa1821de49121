"""Scatter a step's keys and values into pages, both in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .stored import put_heads


@triton.jit(do_not_specialize_on_alignment=["write_page", "write_offset"])
def write_kernel(
    k,  # [T, G, D]
    v,
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    write_page,  # [T]
    write_offset,  # [T]
    k_token,  # elements from one token to the next
    k_head,
    v_token,
    v_head,
    KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,  # of one program, a power of two
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Store one token's heads. Grid: (T, groups of heads)."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, DIM)
    inside = heads < KV_HEADS
    page = tl.load(write_page + token).to(tl.int64)
    offset = tl.load(write_offset + token).to(tl.int64)
    slots = (page * KV_HEADS + heads) * PAGE + offset
    key_at = k + token * k_token + heads[:, None] * k_head + dims[None, :]
    put_heads(k_pages, k_scales, slots, tl.load(key_at, mask=inside[:, None]), inside, DIM)
    value_at = v + token * v_token + heads[:, None] * v_head + dims[None, :]
    put_heads(v_pages, v_scales, slots, tl.load(value_at, mask=inside[:, None]), inside, DIM)
