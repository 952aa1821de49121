"""Quantised keys and values in kernels: how codes are read and made.

The dtype of codes tells their form. Of int8 and of 8-bit floats a number is code * scale; of uint8,
which holds two codes of 4 bits, it is (code - 8) * scale + zero. Scales are float16, one or two of
them for each token and head, in the order of slots: [pages, G, P].

Legend: N keys of a tile, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_codes(
    pages,  # [pages, G, P, D] or [.., D / 2]
    scales,  # [pages, G, P, 1] or [.., 2]
    slots,  # [N] int64
    stored,  # [N], if MASKED: others read as zeros
    kind: tl.constexpr,  # dtype to compute in, which holds all codes exactly
    MASKED: tl.constexpr,
    DIM: tl.constexpr,
):
    """Return codes [N, D] around zero, float32 scales [N], and zeros [N] if they are packed."""
    packed: tl.constexpr = pages.dtype.element_ty == tl.uint8
    width: tl.constexpr = DIM // 2 if packed else DIM
    each: tl.constexpr = 2 if packed else 1
    # Triton 3.6 mixes up neighbours of small heads when it interleaves them in some layouts
    twice: tl.constexpr = packed and DIM < 64
    dims = tl.arange(0, DIM)
    offsets = dims // 2 if twice else tl.arange(0, width)
    at = pages + slots[:, None] * width + offsets[None, :]
    scale_at = scales + slots * each
    if MASKED:
        codes = tl.load(at, mask=stored[:, None], other=0.0)
        scale = tl.load(scale_at, mask=stored, other=0.0).to(tl.float32)
    else:
        codes = tl.load(at)
        scale = tl.load(scale_at).to(tl.float32)
    zero = scale
    if packed:
        if twice:
            codes = ((codes >> (dims % 2 * 4)[None, :].to(tl.uint8)) & 15).to(tl.int8) - 8
        else:
            # neighbours in a head are neighbours in a byte: no thread needs another's registers
            codes = tl.interleave(codes & 15, codes >> 4).to(tl.int8) - 8
        if MASKED:
            zero = tl.load(scale_at + 1, mask=stored, other=0.0).to(tl.float32)
        else:
            zero = tl.load(scale_at + 1).to(tl.float32)
    return codes.to(kind), scale, zero


@triton.jit
def decoded(codes, scale, zero, PACKED: tl.constexpr):
    """Return float32 numbers of codes [N, D] around zero."""
    numbers = codes.to(tl.float32) * scale[:, None]
    if PACKED:
        numbers = numbers + zero[:, None]
    return numbers


@triton.jit
def quotient(x, divisor):
    """Divide rows of x [N, D] by [N], rounded as on the host, and by 1 instead of 0."""
    divisor = tl.where(divisor == 0, 1.0, divisor)
    return tl.div_rn(x, tl.broadcast_to(divisor[:, None], x.shape))


@triton.jit
def encoded(x, kind: tl.constexpr):
    """Turn heads into codes.

    Args:
        x: [N, D].
        kind: Dtype of codes in memory.

    Returns:
        Codes [N, D] around zero, not packed, in int8 or the 8-bit float; float16 scales [N];
        zeros [N] if they are packed.
    """
    x = x.to(tl.float32)
    # a maximum overlooks NaN on some devices, and NaN must stay visible
    broken = tl.sum((x != x).to(tl.int32), 1) > 0
    if kind == tl.uint8:
        low = tl.min(x, 1)
        spread = tl.max(x, 1) - low
        scale = tl.div_rn(spread, tl.full(spread.shape, 15.0, tl.float32)).to(tl.float16)
        zero = (low + 8.0 * scale.to(tl.float32)).to(tl.float16)
        codes = quotient(x - zero.to(tl.float32)[:, None], scale.to(tl.float32))
        codes = tl.minimum(tl.maximum(tl.floor(codes + 8.5), 0.0), 15.0) - 8.0
        codes = tl.where(codes == codes, codes, 0.0).to(tl.int8)  # NaN has no integer
    else:
        largest: tl.constexpr = 127.0 if kind == tl.int8 else 448.0
        most = tl.max(tl.abs(x), 1)
        scale = tl.div_rn(most, tl.full(most.shape, largest, tl.float32)).to(tl.float16)
        zero = scale
        codes = quotient(x, scale.to(tl.float32))
        if kind == tl.int8:
            codes = tl.floor(tl.where(codes == codes, codes, 0.0) + 0.5)
        codes = tl.minimum(tl.maximum(codes, -largest), largest).to(kind)
    return codes, tl.where(broken, float("nan"), scale).to(tl.float16), zero


@triton.jit
def store_codes(
    pages,  # as in `load_codes`
    scales,
    slots,  # [N] int64
    codes,  # as `encoded` returned them
    scale,
    zero,
    inside,  # [N] which are stored
    DIM: tl.constexpr,
):
    """Store codes and scales of heads."""
    packed: tl.constexpr = pages.dtype.element_ty == tl.uint8
    width: tl.constexpr = DIM // 2 if packed else DIM
    each: tl.constexpr = 2 if packed else 1
    if packed:
        pairs = tl.reshape(codes.to(tl.int32) + 8, [codes.shape[0], width, 2])
        low, high = tl.split(pairs)
        codes = (low | (high << 4)).to(tl.uint8)
        tl.store(scales + slots * each + 1, zero, mask=inside)
    tl.store(scales + slots * each, scale, mask=inside)
    at = pages + slots[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(at, codes, mask=inside[:, None])


@triton.jit
def put_heads(
    pages,  # as in `load_codes`, or [pages, G, P, D] of plain numbers
    scales,  # or None
    slots,  # [N] int64
    x,  # [N, D]
    inside,  # [N] which are stored
    DIM: tl.constexpr,
):
    """Store heads in the form of their pages."""
    if scales is None:
        to = slots[:, None] * DIM + tl.arange(0, DIM)[None, :]
        tl.store(pages + to, x, mask=inside[:, None])
    else:
        codes, scale, zero = encoded(x, pages.dtype.element_ty)
        store_codes(pages, scales, slots, codes, scale, zero, inside, DIM)
