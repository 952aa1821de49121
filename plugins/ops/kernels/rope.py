"""Split projected rows into queries, keys and values; norm and rotate the first two.

Sources: Su et al., "RoFormer", arXiv 2104.09864, with the halves of a head as pairs; the norm of
each head as in Henry et al., "Query-Key Normalization for Transformers", arXiv 2010.04245, with an
RMS norm in place of the l2 norm, as the Qwen 3 models have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from camshaft.kernel_launch import launcher

from .launch import options

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer

ELEMENTS = 1024
"""Of all the heads that a program takes, about."""


# a row of qkv:  [q0 ... qH-1 | k0 ... kG-1 | v0 ... vG-1]
# a head:        [first: R / 2 | second: R / 2 | rest: D - R]   rest is normed and not rotated
@triton.jit
def _rope_qk_norm(
    qkv, positions, cos, sin, q_norm, k_norm, q, k, v, qkv_row, table_row, table_rows, eps,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, R: tl.constexpr,
    Q_BLOCKS: tl.constexpr, KV_BLOCKS: tl.constexpr, HEADS: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program takes up to HEADS heads of one token, all of them queries, keys or values."""
    program = tl.program_id(0)
    token = (program // (Q_BLOCKS + 2 * KV_BLOCKS)).to(tl.int64)
    block = program % (Q_BLOCKS + 2 * KV_BLOCKS)
    row = qkv + token * qkv_row
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if block < Q_BLOCKS:
        _turn(row, q + token * (H * D), block * HEADS, H, positions + token, cos, sin, q_norm,
              table_row, table_rows, eps, D, R, HEADS, HALF, REST)  # fmt: skip
    elif block < Q_BLOCKS + KV_BLOCKS:
        _turn(row + H * D, k + token * (G * D), (block - Q_BLOCKS) * HEADS, G, positions + token,
              cos, sin, k_norm, table_row, table_rows, eps, D, R, HEADS, HALF, REST)  # fmt: skip
    else:
        head = (block - Q_BLOCKS - KV_BLOCKS) * HEADS + tl.arange(0, HEADS)[:, None]
        column = tl.arange(0, VALUE)[None, :]
        inside = (head < G) & (column < DV)
        place = head * DV + column
        value = tl.load(row + (H + G) * D + place, mask=inside)
        tl.store(v + token * (G * DV) + place, value, mask=inside)


@triton.jit
def _turn(
    source, target, head, count, position, cos, sin, weight, table_row, table_rows, eps,
    D: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Norm and rotate the heads from `head` on, of the `count` at `source`."""
    kind: tl.constexpr = target.dtype.element_ty
    number = head + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    in_half = (number < count) & (half < R // 2)
    rest = R + tl.arange(0, REST)[None, :]
    in_rest = (number < count) & (rest < D)
    c, s = 1.0, 0.0
    if R > 0:  # two loads in a row: begun first, they are over when the norm is
        at = tl.load(position)
        # outside the tables there is no angle: NaN shows it, reading on would hide it
        known = (half < R // 2) & (at >= 0) & (at < table_rows)
        c = tl.load(cos + at * table_row + half, mask=known, other=float("nan"))
        s = tl.load(sin + at * table_row + half, mask=known, other=float("nan"))
    place = number * D + half
    first = tl.load(source + place, mask=in_half, other=0.0).to(tl.float32)
    second = tl.load(source + place + R // 2, mask=in_half, other=0.0).to(tl.float32)
    tail = tl.zeros([HEADS, REST], tl.float32)
    if R < D:
        tail = tl.load(source + number * D + rest, mask=in_rest, other=0.0).to(tl.float32)
    if weight is not None:
        square = tl.sum(first * first + second * second, axis=1) + tl.sum(tail * tail, axis=1)
        inverse = tl.rsqrt(square / D + eps)[:, None]
        # rounded, because that is what the references rotate
        low = tl.load(weight + half, mask=half < R // 2, other=0.0).to(tl.float32)
        high = tl.load(weight + half + R // 2, mask=half < R // 2, other=0.0).to(tl.float32)
        first = (first * inverse * low).to(kind).to(tl.float32)
        second = (second * inverse * high).to(kind).to(tl.float32)
        if R < D:
            tail *= inverse * tl.load(weight + rest, mask=rest < D, other=0.0).to(tl.float32)
    if R > 0:
        tl.store(target + place, (first * c - second * s).to(kind), mask=in_half)
        tl.store(target + place + R // 2, (second * c + first * s).to(kind), mask=in_half)
    if R < D:
        tl.store(target + number * D + rest, tail.to(kind), mask=in_rest)


def rope_qk_norm(
    qkv: torch.Tensor, positions: torch.Tensor, layer: AttentionLayer, *, early: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `Ops.rope_qk_norm`. All three results are contiguous.

    Angles are read from the tables at the positions that the device holds, not from what
    `Rope.at` kept: a replayed graph meets other positions in the same tensor.
    """
    heads, kv_heads, width, value_width = (
        layer.heads, layer.kv_heads, layer.head_dim, layer.value_dim
    )  # fmt: skip
    rope = layer.rope
    rotated = 0 if rope is None else 2 * rope.cos.shape[1]
    assert qkv.stride(1) == 1
    assert positions.stride(0) == 1
    assert rope is None or rope.cos.stride() == rope.sin.stride() == (rotated // 2, 1)
    q = qkv.new_empty(len(qkv), heads, width)
    k = qkv.new_empty(len(qkv), kv_heads, width)
    v = qkv.new_empty(len(qkv), kv_heads, value_width)
    padded = triton.next_power_of_2(width)
    block = min(triton.next_power_of_2(kv_heads), max(1, ELEMENTS // padded))
    q_blocks, kv_blocks = triton.cdiv(heads, block), triton.cdiv(kv_heads, block)
    launch = launcher(
        _rope_qk_norm,
        H=heads,
        G=kv_heads,
        D=width,
        DV=value_width,
        R=rotated,
        Q_BLOCKS=q_blocks,
        KV_BLOCKS=kv_blocks,
        HEADS=block,
        HALF=triton.next_power_of_2(max(1, rotated // 2)),
        REST=triton.next_power_of_2(max(1, width - rotated)),
        VALUE=triton.next_power_of_2(value_width),
        EARLY=early,
        **options(block * padded // 2, 4, early=early),
    )
    launch(
        (len(qkv) * (q_blocks + 2 * kv_blocks), 1, 1),
        qkv,
        positions,
        None if rope is None else rope.cos,
        None if rope is None else rope.sin,
        layer.q_norm,
        layer.k_norm,
        q,
        k,
        v,
        qkv.stride(0),
        rotated // 2,
        0 if rope is None else len(rope.cos),
        layer.norm_eps,
    )
    return q, k, v
