"""Integers in the order of logits, odds, and random numbers: what several kernels compute.

A place of a row is ordered by its logit and, among equal logits, by its id, the lowest first. Both
together are one integer, so that "the best ones" are always those from some integer on:

    order = key of the logit (signed) * 2**18 + (2**18 - 1 - id)

Keys of half precisions have low bits that say nothing; they are shifted out.
"""

from __future__ import annotations

import triton
import triton.language as tl

IDS = tl.constexpr(2**18)
"""More ids than a vocabulary may have."""

UNIT = tl.constexpr(2.0**44)
"""Mass of a row's best token, as in the other forms of the choice."""

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def order_key(values):
    """Return int32 keys in the order of float32 values; both zeros have the same."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def order_of(values, ids, SHIFT: tl.constexpr):
    """Return the int64 that orders places by value and id."""
    key = (order_key(values) >> SHIFT).to(tl.int64)
    return key * IDS + (IDS - 1 - ids)


@triton.jit
def odds_of(values, best, temperature):
    """Return probabilities as parts of the best token's, whose is exactly 1."""
    return tl.exp2((values - best) * (tl.div_rn(1.0, temperature) * LOG2_E))


@triton.jit
def mass_of(odds):
    """Return odds as int64, whose sums are exact."""
    return (odds * UNIT).to(tl.int64)


@triton.jit
def uniform_of(key, index):
    """Return number `index` of a stream, float64 in [0, 1); as `random.uniforms`."""
    state = key.to(tl.uint64, bitcast=True)
    state += (index + 1).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = state ^ (state >> 31)
    return (state >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2**-53
