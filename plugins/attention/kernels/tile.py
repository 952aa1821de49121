"""What the attention kernels share: one tile of keys, and the end of a softmax.

Legend: M rows (query tokens times query heads of one kv head), N keys of a tile, D head size.
Scores are kept in base 2, so that `exp2` needs no further multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
):
    """Take keys and values into a running softmax (Milakov and Gimelshein, arXiv 1805.02867)."""
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
    dims = tl.arange(0, DIM)
    stored = (keys >= first) & (keys < end)
    if MASKED:
        page = tl.load(table + keys // PAGE, mask=stored, other=0)
    else:
        page = tl.load(table + keys // PAGE)
    places = places_of(page, keys, kv_head, KV_HEADS, PAGE, DIM)
    at = places[:, None] + dims[None, :]
    if MASKED:
        k = tl.load(k_pages + at, mask=stored[:, None], other=0.0)
        v = tl.load(v_pages + at, mask=stored[:, None], other=0.0)
    else:
        k = tl.load(k_pages + at)
        v = tl.load(v_pages + at)
    seen = True
    if MASKED:
        seen = (keys[None, :] <= last[:, None]) & stored[None, :]
        if WINDOW > 0:
            seen = seen & (keys[None, :] > last[:, None] - WINDOW)
    return take_tile(q, best, total, acc, k, v, seen, scale, cap, MASKED, HAS_CAP)


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
