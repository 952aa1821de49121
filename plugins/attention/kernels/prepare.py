"""From projected rows to rotated queries, and to keys and values in their pages, in one launch.

Sources: Su et al., RoFormer, arXiv 2104.09864; Henry et al., Query-Key Normalization, arXiv
2010.04245, with an RMS norm. Angles are read from the tables at the positions that the device
holds, so that a replayed graph meets those of its own step.

With EARLY the kernel begins while the one before it ends. Positions are read before that has ended:
they were written before a model's first layer, and by kernels that are launched one after another.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .stored import put_heads


@triton.jit
def angles_at(
    position,
    cos,  # float32 [positions, ROTATED / 2]
    sin,
    angles,  # rows of these tables
    ROTATED: tl.constexpr,
    DIM: tl.constexpr,
):
    """Return cosines and signed sines [DIM], without meaning behind the rotated part."""
    half: tl.constexpr = ROTATED // 2
    dims = tl.arange(0, DIM)
    # outside the tables there is no angle, and NaN says so
    known = (dims < ROTATED) & (position >= 0) & (position < angles)
    angle = position * half + dims % half
    c = tl.load(cos + angle, mask=known, other=float("nan"))
    s = tl.load(sin + angle, mask=known, other=float("nan"))
    return c, tl.where(dims < half, -s, s)


@triton.jit
def turned(
    source,  # of the first of the heads
    heads,  # [HEADS]
    inside,  # [HEADS]
    weight,  # [D], if NORMED
    c,  # [D], if ROTATED
    s,
    eps,
    NORMED: tl.constexpr,
    ROTATED: tl.constexpr,
    DIM: tl.constexpr,
):
    """Return heads [HEADS, DIM] in the source's dtype, normed and rotated in float32."""
    kind: tl.constexpr = source.dtype.element_ty
    # a head:  [0 ... R/2) first half   [R/2 ... R) second half   [R ... D) stays
    half: tl.constexpr = ROTATED // 2
    dims = tl.arange(0, DIM)
    at = source + heads[:, None] * DIM
    x = tl.load(at + dims[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    inverse = 1.0
    if NORMED:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        # rounded, because what is rotated is the norm's result in the model's dtype
        x = (x * inverse * tl.load(weight + dims).to(tl.float32)[None, :]).to(kind).to(tl.float32)
    if ROTATED > 0:
        partner = tl.where(dims < half, dims + half, tl.where(dims < ROTATED, dims - half, dims))
        other = tl.load(at + partner[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        if NORMED:
            factor = tl.load(weight + partner).to(tl.float32)
            other = (other * inverse * factor[None, :]).to(kind).to(tl.float32)
        x = tl.where((dims < ROTATED)[None, :], x * c[None, :] + other * s[None, :], x)
    return x.to(kind)


@triton.jit(do_not_specialize_on_alignment=["positions", "write_page", "write_offset"])
def prepare_kernel(
    qkv,  # [T, (H + 2 G) * D]
    positions,  # [T]
    write_page,  # [T]
    write_offset,  # [T]
    cos,
    sin,
    q_norm,  # [D] or None
    k_norm,
    q,  # [T, H, D]
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    keys,  # [T, G, D] for a copy in the order of tokens, or None
    values,
    qkv_row,  # elements from one token to the next
    angles,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,  # of one program, a power of two
    Q_BLOCKS: tl.constexpr,  # programs for a token's queries
    KV_BLOCKS: tl.constexpr,  # and for its keys, and for its values
    ROTATED: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Take some heads of one token. Grid: (T, Q_BLOCKS + 2 * KV_BLOCKS)."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    row = qkv + token * qkv_row
    dims = tl.arange(0, DIM)
    c, s = 1.0, 0.0
    if ROTATED > 0:
        position = tl.load(positions + token).to(tl.int64)
        c, s = angles_at(position, cos, sin, angles, ROTATED, DIM)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if block < Q_BLOCKS:
        heads = block * HEADS + tl.arange(0, HEADS)
        inside = heads < Q_HEADS
        x = turned(row, heads, inside, q_norm, c, s, eps, q_norm is not None, ROTATED, DIM)
        out_at = q + (token * Q_HEADS + heads)[:, None] * DIM + dims[None, :]
        tl.store(out_at, x, mask=inside[:, None])
    else:
        heads = ((block - Q_BLOCKS) % KV_BLOCKS) * HEADS + tl.arange(0, HEADS)
        inside = heads < KV_HEADS
        page = tl.load(write_page + token).to(tl.int64)
        offset = tl.load(write_offset + token).to(tl.int64)
        slots = (page * KV_HEADS + heads) * PAGE + offset
        row_to = (token * KV_HEADS + heads)[:, None] * DIM + dims[None, :]
        if block < Q_BLOCKS + KV_BLOCKS:
            k_row = row + Q_HEADS * DIM
            x = turned(k_row, heads, inside, k_norm, c, s, eps, k_norm is not None, ROTATED, DIM)
            put_heads(k_pages, k_scales, slots, x, inside, DIM)
            if keys is not None:
                tl.store(keys + row_to, x, mask=inside[:, None])
        else:
            at = row + (Q_HEADS + KV_HEADS + heads)[:, None] * DIM + dims[None, :]
            v = tl.load(at, mask=inside[:, None])
            put_heads(v_pages, v_scales, slots, v, inside, DIM)
            if values is not None:
                tl.store(values + row_to, v, mask=inside[:, None])
