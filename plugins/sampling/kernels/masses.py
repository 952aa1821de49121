"""Sums of a row's probabilities, and a list of the tokens that top-k and top-p may keep.

Both kernels read whole rows with many programs. The sums are those of whole chunks, for top-p and
for the draw, and those of the tokens above a few levels of probability. From the latter follows
how far down the list has to go: mostly hundreds of tokens of 150,000.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .order import UNIT, mass_of, odds_of, order_key, order_of

LEVELS = tl.constexpr(4)

LIST = tl.constexpr(4096)
"""Places in a row's list. A row with more candidates is searched as a whole."""


@triton.jit
def _level(index):
    """Return odds of 2**-3, 2**-6, 2**-10 and 2**-15: above them stand ever more tokens."""
    return tl.exp2(-0.5 * (index * index + 5 * index + 6).to(tl.float32))


@triton.jit(do_not_specialize_on_alignment=["slots"])
def sums_kernel(
    logits, slots, floats, integers, bests, finite, totals, shares, row_stride, R,
    V: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, CUT: tl.constexpr,
):  # fmt: skip
    """Write a chunk's mass, and its odds above each level, for rows that need them."""
    program = tl.program_id(0)
    row = (program // CHUNKS).to(tl.int64)
    slot = tl.load(slots + row)
    temperature = tl.load(floats + slot)
    top_k = tl.load(integers + 2 * R + slot)
    # the list of a top-k is known to hold all of its mass
    if (temperature > 0) & tl.load(finite + row) & (top_k >= V):
        top_p = tl.load(floats + R + slot)
        min_p = tl.load(floats + 2 * R + slot)
        column = (program % CHUNKS) * CHUNK + tl.arange(0, CHUNK)
        place = logits + row * row_stride + column
        values = tl.load(place, mask=column < V, other=-float("inf")).to(tl.float32)
        odds = odds_of(values, tl.load(bests + row), temperature)
        # min-p comes after top-p, so that it counts here only where there is no top-p
        counted = odds >= tl.where(top_p < 1, 0.0, min_p)
        tl.store(totals + program, tl.sum(tl.where(counted, mass_of(odds), 0), axis=0))
        if CUT:  # noqa: SIM102 - known when it compiles, as the next is not
            if top_p < 1:
                for index in tl.static_range(LEVELS):
                    level = _level(tl.full([], index, tl.int32))
                    above = tl.sum(tl.where(odds >= level, odds, 0.0), axis=0)
                    tl.store(shares + program * LEVELS + index, above)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def list_kernel(
    logits, slots, floats, integers, bests, finite, bounds, totals, shares, found, orders, listed,
    row_stride, R,
    V: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Append a piece's candidates, as orders and odds, to the lists of rows with top-k or top-p.

    `found` counts them, also those that found no place.
    """
    program = tl.program_id(0)
    row = (program // PIECES).to(tl.int64)
    slot = tl.load(slots + row)
    temperature = tl.load(floats + slot)
    top_p = tl.load(floats + R + slot)
    top_k = tl.load(integers + 2 * R + slot)
    if (temperature > 0) & tl.load(finite + row) & ((top_k < V) | (top_p < 1)):
        min_p = tl.load(floats + 2 * R + slot)
        if top_k < V:
            # top-p is a share of the whole top-k, so that min-p must wait for it
            least = tl.where(top_p < 1, 0.0, min_p)
        else:
            least = _least_odds(row, totals, shares, top_p, min_p, V, CHUNKS, PADDED)
        column = (program % PIECES) * PIECE + tl.arange(0, PIECE)
        place = logits + row * row_stride + column
        values = tl.load(place, mask=column < V, other=-float("inf")).to(tl.float32)
        odds = odds_of(values, tl.load(bests + row), temperature)
        wanted = (order_key(values) >> 16 >= tl.load(bounds + row)) & (odds >= least)
        wanted = wanted & (mass_of(odds) > 0)
        count = tl.sum(wanted.to(tl.int32), axis=0)
        if count > 0:
            start = tl.atomic_add(found + row, count)
            at = start + tl.cumsum(wanted.to(tl.int32), axis=0) - 1
            fits = wanted & (at < LIST)
            tl.store(orders + row * LIST + at, order_of(values, column, SHIFT), mask=fits)
            tl.store(listed + row * LIST + at, odds, mask=fits)


@triton.jit
def _least_odds(
    row, totals, shares, top_p, min_p, V: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr
):
    """Return odds below which top-p keeps nothing."""
    chunk = tl.arange(0, PADDED)
    index = tl.arange(0, LEVELS)
    inside = chunk < CHUNKS
    total = tl.sum(tl.load(totals + row * CHUNKS + chunk, mask=inside, other=0), axis=0)
    place = (row * CHUNKS + chunk)[:, None] * LEVELS + index[None, :]
    above = tl.sum(tl.load(shares + place, mask=inside[:, None], other=0.0), axis=0)
    # the sums of floats are off by far less than a thousandth
    enough = above * 0.999 >= top_p * (total.to(tl.float32) / UNIT)
    level = tl.max(tl.where(enough, _level(index), 0.0), axis=0)
    # V tokens below this weigh less than what top-p may leave out; halved against rounding
    floor = (1 - top_p) * (0.5 / V)
    return tl.maximum(tl.maximum(level, floor), min_p)
