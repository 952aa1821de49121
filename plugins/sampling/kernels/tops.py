"""The best of each block of logits, and from these a row's best token and a bound for its top-k.

A row is read once, by many programs, so that a single row keeps a whole device busy. The second
kernel reads the results, and of the logits the one block that holds the first maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .order import order_key

BLOCK = tl.constexpr(256)
"""Logits of which the best is kept."""


@triton.jit
def tops_kernel(
    logits, tops, row_stride,
    V: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the maxima of a chunk's blocks, infinity for a block that holds a NaN."""
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64)
    blocks: tl.constexpr = CHUNK // BLOCK
    block = (program % CHUNKS) * blocks + tl.arange(0, blocks)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(logits + row * row_stride + column, mask=column < V, other=-float("inf"))
    values = values.to(tl.float32)
    # a maximum may pass over a NaN; infinity is no less a fault
    values = tl.where(values < float("inf"), values, float("inf"))
    tl.store(tops + row * (CHUNKS * blocks) + block, tl.max(values, axis=1))


@triton.jit(do_not_specialize_on_alignment=["slots"])
def begin_kernel(
    logits, tops, slots, integers, tokens, finite, bests, bounds, found, row_stride, R,
    V: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr,
    BOUND: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """Choose greedily, tell sound rows from others, and start what the next kernels need.

    `bounds` gets a lower bound of the upper halves of the keys of the top-k best: the k-th best
    of the blocks' maxima, or the least number if there are fewer blocks or no top-k.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, PADDED)
    own = tl.load(tops + row * BLOCKS + block, mask=block < BLOCKS, other=-float("inf"))
    best = tl.max(own, axis=0)
    sound = (best < float("inf")) & (best > -float("inf"))
    first = tl.min(tl.where(own == best, block, PADDED), axis=0)
    column = first * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    values = tl.load(logits + row * row_stride + column, mask=inside, other=-float("inf"))
    token = tl.min(tl.where((values.to(tl.float32) == best) & inside, column, V), axis=0)
    tl.store(tokens + row, tl.where(sound, token, 0).to(tl.int64))
    tl.store(finite + row, sound)
    if bests is not None:
        tl.store(bests + row, best)
    slot = tl.load(slots + row)
    if BOUND:
        top_k = tl.load(integers + 2 * R + slot)
        half = tl.where(block < BLOCKS, order_key(own) >> 16, -32768)
        low, high = -32768, (order_key(best) >> 16) + 1
        for _ in tl.static_range(16):
            middle = (low + high) >> 1
            enough = tl.sum((half >= middle).to(tl.int32), axis=0) >= top_k
            # a middle that is `low` itself, once they have met, changes nothing
            low = tl.where(enough & (middle > low), middle, low)
            high = tl.where(enough | (middle == low), high, middle)
        tl.store(bounds + row, tl.where(top_k < V, low, -32768))
        tl.store(found + row, 0)
    if ADVANCE:
        tl.store(integers + R + slot, tl.load(integers + R + slot) + 1)
