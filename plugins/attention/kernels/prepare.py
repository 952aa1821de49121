"""From projected rows to rotated queries, and to keys and values in their pages, in one launch.

Sources: Su et al., RoFormer, arXiv 2104.09864; Henry et al., Query-Key Normalization, arXiv
2010.04245, with an RMS norm. Angles are read from the tables at the positions that the device
holds, so that a replayed graph meets those of its own step.

With EARLY the kernel begins while the one before it ends. Positions are read before that has ended:
they were written before a model's first layer, and by kernels that are launched one after another.

Where whole heads are rotated, their halves are read and written apart, so each is loaded once.
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


@triton.jit
def half_angles(
    position,
    cos,  # float32 [positions, HALF]
    sin,
    angles,  # rows of these tables
    HALF: tl.constexpr,
):
    """Return cosines and sines [HALF]; NaN outside the tables."""
    dims = tl.arange(0, HALF)
    known = (dims < HALF) & (position >= 0) & (position < angles)
    c = tl.load(cos + position * HALF + dims, mask=known, other=float("nan"))
    s = tl.load(sin + position * HALF + dims, mask=known, other=float("nan"))
    return c, s


@triton.jit
def turned_halves(
    source,  # of the first of the heads
    heads,  # [HEADS]
    inside,  # [HEADS]
    weight,  # [2 * HALF], if NORMED
    c,  # [HALF]
    s,
    eps,
    NORMED: tl.constexpr,
    HALF: tl.constexpr,
):
    """Return both halves [HEADS, HALF] of heads in the source's dtype, normed and rotated."""
    kind: tl.constexpr = source.dtype.element_ty
    dims = tl.arange(0, HALF)
    at = source + heads[:, None] * (2 * HALF) + dims[None, :]
    a = tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside[:, None], other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1)
        inverse = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        # rounded, because what is rotated is the norm's result in the model's dtype
        a = (a * inverse * tl.load(weight + dims).to(tl.float32)[None, :]).to(kind).to(tl.float32)
        factor = tl.load(weight + HALF + dims).to(tl.float32)
        b = (b * inverse * factor[None, :]).to(kind).to(tl.float32)
    first = a * c[None, :] - b * s[None, :]
    second = b * c[None, :] + a * s[None, :]
    return first.to(kind), second.to(kind)


@triton.jit
def put_halves(
    to,  # [HEADS] pointers to heads
    first,  # [HEADS, HALF]
    second,
    inside,  # [HEADS]
    HALF: tl.constexpr,
):
    """Store heads by halves."""
    at = to[:, None] + tl.arange(0, HALF)[None, :]
    tl.store(at, first, mask=inside[:, None])
    tl.store(at + HALF, second, mask=inside[:, None])


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
    half: tl.constexpr = DIM // 2
    halved: tl.constexpr = ROTATED == DIM and k_scales is None  # codes are made of whole heads
    c, s = 1.0, 0.0
    if ROTATED > 0:
        position = tl.load(positions + token).to(tl.int64)
        if halved:
            c, s = half_angles(position, cos, sin, angles, half)
        else:
            c, s = angles_at(position, cos, sin, angles, ROTATED, DIM)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if block < Q_BLOCKS:
        heads = block * HEADS + tl.arange(0, HEADS)
        inside = heads < Q_HEADS
        to = q + (token * Q_HEADS + heads) * DIM
        if halved:
            x, y = turned_halves(row, heads, inside, q_norm, c, s, eps, q_norm is not None, half)
            put_halves(to, x, y, inside, half)
        else:
            x = turned(row, heads, inside, q_norm, c, s, eps, q_norm is not None, ROTATED, DIM)
            tl.store(to[:, None] + dims[None, :], x, mask=inside[:, None])
    else:
        heads = ((block - Q_BLOCKS) % KV_BLOCKS) * HEADS + tl.arange(0, HEADS)
        inside = heads < KV_HEADS
        page = tl.load(write_page + token).to(tl.int64)
        offset = tl.load(write_offset + token).to(tl.int64)
        slots = (page * KV_HEADS + heads) * PAGE + offset
        copy_to = (token * KV_HEADS + heads) * DIM
        row_to = copy_to[:, None] + dims[None, :]
        normed: tl.constexpr = k_norm is not None
        if block < Q_BLOCKS + KV_BLOCKS:
            k_row = row + Q_HEADS * DIM
            if halved:
                x, y = turned_halves(k_row, heads, inside, k_norm, c, s, eps, normed, half)
                put_halves(k_pages + slots * DIM, x, y, inside, half)
                if keys is not None:
                    put_halves(keys + copy_to, x, y, inside, half)
            else:
                x = turned(k_row, heads, inside, k_norm, c, s, eps, normed, ROTATED, DIM)
                put_heads(k_pages, k_scales, slots, x, inside, DIM)
                if keys is not None:
                    tl.store(keys + row_to, x, mask=inside[:, None])
        else:
            at = row + (Q_HEADS + KV_HEADS + heads)[:, None] * DIM + dims[None, :]
            v = tl.load(at, mask=inside[:, None])
            put_heads(v_pages, v_scales, slots, v, inside, DIM)
            if values is not None:
                tl.store(values + row_to, v, mask=inside[:, None])
