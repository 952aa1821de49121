"""What the attention kernels share: one tile of keys, and the end of a softmax.

Legend: M rows (query tokens times query heads of one kv head), N keys of a tile, D head size.
Scores are kept in base 2, so that `exp2` needs no further multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .stored import load_codes


@triton.jit
def capped(scores, cap):
    """Return `cap * tanh(scores / cap)`; the form stays finite where `exp` overflows."""
    return cap - 2.0 * cap / (tl.exp(scores * (2.0 / cap)) + 1.0)


@triton.jit
def places_of(
    page, keys, kv_head, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Return where the elements of keys begin."""
    # pages of a large pool lie further than 2**31 elements apart
    return (page.to(tl.int64) * KV_HEADS + kv_head) * (PAGE * DIM) + (keys % PAGE) * DIM


@triton.jit
def load_heads(
    pages,
    scales,
    page,  # [N] of each key
    keys,  # [N]
    kv_head,
    stored,  # [N], if MASKED: others are zeros
    kind: tl.constexpr,  # dtype to compute in
    MASKED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
):
    """Return what pages hold of keys [N, D], and scales and zeros, without meaning if plain."""
    scale = tl.zeros([1], tl.float32)
    zero = scale
    if scales is None:
        dims = tl.arange(0, DIM)
        at = places_of(page, keys, kv_head, KV_HEADS, PAGE, DIM)[:, None] + dims[None, :]
        if MASKED:
            heads = tl.load(pages + at, mask=stored[:, None], other=0.0)
        else:
            heads = tl.load(pages + at)
    else:
        slots = places_of(page, keys, kv_head, KV_HEADS, PAGE, 1)
        heads, scale, zero = load_codes(pages, scales, slots, stored, kind, MASKED, DIM)
    return heads, scale, zero


@triton.jit
def take_tile(
    q,  # [M, D]
    best,  # [M] largest score so far
    total,  # [M] sum of exponentials so far, relative to `best`
    acc,  # [M, D] weighted values so far
    k,  # [N, D]
    v,
    seen,  # [M, N] or [1, N], if MASKED
    scale,  # of scores, to base 2 unless there is a cap
    cap,
    MASKED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SCALED: tl.constexpr,  # k and v are codes: see `stored`
    PACKED: tl.constexpr,  # which have zeros
    k_scale,  # float32 [N] each, as `load_heads` returned them
    k_zero,
    v_scale,
    v_zero,
):
    """Take keys and values into a running softmax (Milakov and Gimelshein, arXiv 1805.02867).

    Scales of keys multiply scores and those of values weights, N numbers instead of N * D.
    """
    if SCALED:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * k_scale[None, :]
        if PACKED:
            scores += tl.sum(q.to(tl.float32), 1)[:, None] * k_zero[None, :]
        scores = scores * scale
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if HAS_CAP:
        scores = capped(scores, cap) * 1.4426950408889634
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    larger = tl.maximum(best, tl.max(scores, 1))
    # a row that has seen nothing yet stands at minus infinity, and inf - inf is NaN
    base = tl.where(larger == float("-inf"), 0.0, larger) if MASKED else larger
    shrink = tl.exp2(best - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    if SCALED:
        if PACKED:
            acc += tl.sum(weights * v_zero[None, :], 1)[:, None]
        weights = weights * v_scale[None, :]
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return larger, total, acc


@triton.jit
def attend_tile(
    q,  # [M, D]
    best,  # [M] largest score so far
    total,  # [M] sum of exponentials so far, relative to `best`
    acc,  # [M, D] weighted values so far
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # of this request
    keys,  # [N] places of the tile's keys in the sequence
    first,  # keys before it are not loaded: their pages may be gone
    end,  # keys from here on are not loaded: they may never have been written
    last,  # [M] place of each row's own key
    kv_head,
    scale,  # of scores, to base 2 unless there is a cap
    cap,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
):
    """Load one tile of keys and values, and take it into a running softmax."""
    stored = (keys >= first) & (keys < end)
    if MASKED:
        page = tl.load(table + keys // PAGE, mask=stored, other=0)
    else:
        page = tl.load(table + keys // PAGE)
    k, k_scale, k_zero = load_heads(
        k_pages, k_scales, page, keys, kv_head, stored, q.dtype, MASKED, KV_HEADS, PAGE, DIM
    )
    v, v_scale, v_zero = load_heads(
        v_pages, v_scales, page, keys, kv_head, stored, q.dtype, MASKED, KV_HEADS, PAGE, DIM
    )
    seen = True
    if MASKED:
        seen = (keys[None, :] <= last[:, None]) & stored[None, :]
        if WINDOW > 0:
            seen = seen & (keys[None, :] > last[:, None] - WINDOW)
    scaled: tl.constexpr = k_scales is not None
    packed: tl.constexpr = k_pages.dtype.element_ty == tl.uint8
    return take_tile(
        q, best, total, acc, k, v, seen, scale, cap, MASKED, HAS_CAP, scaled, packed,
        k_scale, k_zero, v_scale, v_zero,
    )  # fmt: skip


@triton.jit
def with_sink(best, total, sink):
    """Let a logit without a value take part.

    Returns:
        The new largest score, the new sum, and the factor for what was accumulated.
    """
    sink = sink * 1.4426950408889634
    larger = tl.maximum(best, sink)
    shrink = tl.exp2(best - larger)
    return larger, total * shrink + tl.exp2(sink - larger), shrink


@triton.jit
def log_sum(best, total):
    """Return the natural log of the sum of exponentials."""
    return (best + tl.log2(tl.where(total > 0, total, 1.0))) * 0.6931471805599453
