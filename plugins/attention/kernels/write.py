"""Scatter a step's keys and values into pages, both in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize_on_alignment=["write_page", "write_offset"])
def write_kernel(
    k,  # [T, G, D]
    v,
    k_pages,  # [pages, G, P, D]
    v_pages,
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
    inside = (heads < KV_HEADS)[:, None]
    page = tl.load(write_page + token).to(tl.int64)
    offset = tl.load(write_offset + token).to(tl.int64)
    to = ((page * KV_HEADS + heads) * PAGE + offset)[:, None] * DIM + dims[None, :]
    key = tl.load(k + token * k_token + heads[:, None] * k_head + dims[None, :], mask=inside)
    tl.store(k_pages + to, key, mask=inside)
    value = tl.load(v + token * v_token + heads[:, None] * v_head + dims[None, :], mask=inside)
    tl.store(v_pages + to, value, mask=inside)
