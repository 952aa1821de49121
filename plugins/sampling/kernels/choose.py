"""The draw of a token from the sums or the list of a row.

Selection is by bisection over the integers of `order`: of all candidates, how many, or how much
mass, stand from a given integer on? It ends when the kept ones are told from the others, after
about as many steps as the number of candidates has bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .masses import LIST
from .order import IDS, mass_of, odds_of, order_of, uniform_of


@triton.jit(do_not_specialize_on_alignment=["slots", "offsets"])
def choose_kernel(
    logits, slots, offsets, floats, integers, bests, finite, totals, found, orders, listed, tokens,
    row_stride, R,
    V: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr,
    SHIFT: tl.constexpr, CUT: tl.constexpr, ADVANCE: tl.constexpr,
):  # fmt: skip
    """Draw the tokens of rows that are sound and not greedy."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    temperature = tl.load(floats + slot)
    produced = tl.load(integers + R + slot)
    if (temperature > 0) & tl.load(finite + row):
        top_p = tl.load(floats + R + slot)
        min_p = tl.load(floats + 2 * R + slot)
        top_k = tl.load(integers + 2 * R + slot)
        best = tl.load(bests + row)
        offset = 0
        if offsets is not None:
            offset = tl.load(offsets + row)
        uniform = uniform_of(tl.load(integers + slot), produced + offset)
        source = logits + row * row_stride
        total = tl.zeros([], tl.int64)
        if top_k >= V:
            chunk = tl.arange(0, PADDED)
            sums = tl.load(totals + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
            total = tl.sum(sums, axis=0)
        if (top_k >= V) & (top_p >= 1):
            target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
            chunk = tl.arange(0, PADDED)
            sums = tl.load(totals + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
            passed = tl.cumsum(sums, axis=0) <= target
            at = tl.sum(passed.to(tl.int32), axis=0)
            before = tl.sum(tl.where(passed, sums, 0), axis=0)
            column = at * CHUNK + tl.arange(0, CHUNK)
            values = tl.load(source + column, mask=column < V, other=-float("inf"))
            odds = odds_of(values.to(tl.float32), best, temperature)
            mass = tl.where(odds >= min_p, mass_of(odds), 0)
            place = tl.sum((before + tl.cumsum(mass, axis=0) <= target).to(tl.int32), axis=0)
            tl.store(tokens + row, (at * CHUNK + place).to(tl.int64))
        elif CUT:
            token = _draw_cut(
                source, orders + row * LIST, listed + row * LIST, tl.load(found + row), best,
                temperature, top_k, top_p, min_p, total, uniform, V, SHIFT,
            )  # fmt: skip
            tl.store(tokens + row, token)
    if ADVANCE:
        tl.store(integers + R + slot, produced + 1)


@triton.jit
def _draw_cut(
    source, orders, listed, found, best, temperature, top_k, top_p, min_p, total, uniform,
    V: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Draw from what top-k, then top-p, then min-p leave."""
    in_list = found <= LIST
    size = tl.where(in_list, found, V)
    low, high = _ends(source, orders, listed, in_list, size, best, temperature, V, SHIFT)
    count, mass = _above(low, source, orders, listed, in_list, size, best, temperature, V, SHIFT)
    if top_k < count:
        low, count, mass = _select(
            low, high, count, mass, top_k, False,
            source, orders, listed, in_list, size, best, temperature, V, SHIFT,
        )  # fmt: skip
    if top_p < 1:
        if top_k < V:
            total = mass
        need = (top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        need = tl.maximum(need, 1)
        if need < mass:
            low, count, mass = _select(
                low, high, count, mass, need, True,
                source, orders, listed, in_list, size, best, temperature, V, SHIFT,
            )  # fmt: skip
    return _draw(
        low, min_p, uniform, source, orders, listed, in_list, size, best, temperature, V, SHIFT
    )


@triton.jit
def _tile(
    start, source, orders, listed, in_list, size, best, temperature,
    V: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return orders and odds [LIST] of candidates, from the list or from the row itself."""
    place = start + tl.arange(0, LIST)
    inside = place < size
    if in_list:
        order = tl.load(orders + place, mask=inside, other=0)
        odds = tl.load(listed + place, mask=inside, other=0.0)
    else:
        values = tl.load(source + place, mask=inside, other=-float("inf")).to(tl.float32)
        order = order_of(values, place, SHIFT)
        odds = odds_of(values, best, temperature)
    return order, odds


@triton.jit
def _ends(
    source, orders, listed, in_list, size, best, temperature, V: tl.constexpr, SHIFT: tl.constexpr
):
    """Return the lowest order of a candidate, and one above the highest."""
    low = tl.full([], 2**62, tl.int64)
    high = tl.full([], -(2**62), tl.int64)
    for start in range(0, size, LIST):
        order, odds = _tile(
            start, source, orders, listed, in_list, size, best, temperature, V, SHIFT
        )
        real = mass_of(odds) > 0
        low = tl.minimum(low, tl.min(tl.where(real, order, 2**62), axis=0))
        high = tl.maximum(high, tl.max(tl.where(real, order, -(2**62)), axis=0))
    return low, high + 1


@triton.jit
def _above(
    low, source, orders, listed, in_list, size, best, temperature,
    V: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return number and mass of the candidates from `low` on."""
    count = tl.zeros([], tl.int64)
    mass = tl.zeros([], tl.int64)
    for start in range(0, size, LIST):
        order, odds = _tile(
            start, source, orders, listed, in_list, size, best, temperature, V, SHIFT
        )
        own = tl.where(order >= low, mass_of(odds), 0)
        count += tl.sum((own > 0).to(tl.int32), axis=0).to(tl.int64)
        mass += tl.sum(own, axis=0)
    return count, mass


@triton.jit
def _select(
    low, high, count, mass, need, BY_MASS: tl.constexpr,
    source, orders, listed, in_list, size, best, temperature, V: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return the highest order from which on there is enough, with the number and mass there.

    Enough stand from `low` on: `count` and `mass` do. None stand from `high` on. `need` is of
    candidates or of mass.
    """
    rest = tl.zeros([], tl.int64)  # candidates from `high` on
    weight = mass if BY_MASS else count
    while (count - rest > 1) & (weight > need):
        middle = (low + high) >> 1
        count_there, mass_there = _above(
            middle, source, orders, listed, in_list, size, best, temperature, V, SHIFT
        )
        there = mass_there if BY_MASS else count_there
        enough = there >= need
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        count = tl.where(enough, count_there, count)
        mass = tl.where(enough, mass_there, mass)
        weight = tl.where(enough, there, weight)
        rest = tl.where(enough, rest, count_there)
    return low, count, mass


@triton.jit
def _kept(order, odds, low, min_p):
    """Return the mass of what is kept."""
    return tl.where((order >= low) & (odds >= min_p), mass_of(odds), 0)


@triton.jit
def _draw(
    low, min_p, uniform, source, orders, listed, in_list, size, best, temperature,
    V: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Return where the mass in the order of ids first exceeds its share, int64."""
    total = tl.zeros([], tl.int64)
    for start in range(0, size, LIST):
        order, odds = _tile(
            start, source, orders, listed, in_list, size, best, temperature, V, SHIFT
        )
        total += tl.sum(_kept(order, odds, low, min_p), axis=0)
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    token = tl.zeros([], tl.int64)
    if in_list:  # unordered, but short: bisect over ids
        order, odds = _tile(0, source, orders, listed, in_list, size, best, temperature, V, SHIFT)
        mass = _kept(order, odds, low, min_p)
        ids = IDS - 1 - (order & (IDS - 1))
        below = tl.full([], -1, tl.int64)
        token += V - 1
        while token - below > 1:
            middle = (below + token) >> 1
            passed = tl.sum(tl.where(ids <= middle, mass, 0), axis=0) <= target
            below = tl.where(passed, middle, below)
            token = tl.where(passed, token, middle)
    else:
        # tiles of the row in order of ids: add up how many ids lie before the target
        running = tl.zeros([], tl.int64)
        for start in range(0, size, LIST):
            order, odds = _tile(
                start, source, orders, listed, in_list, size, best, temperature, V, SHIFT
            )
            mass = _kept(order, odds, low, min_p)
            own = tl.sum(mass, axis=0)
            if running + own <= target:
                token += LIST
            elif running <= target:
                passed = running + tl.cumsum(mass, axis=0) <= target
                token += tl.sum(passed.to(tl.int32), axis=0).to(tl.int64)
            running += own
    return token
