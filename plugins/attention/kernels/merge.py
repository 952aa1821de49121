"""Merge attention over parts of the keys by the logs of their sums.

Source: Dao et al., Flash-Decoding, 2023; the identity is that of Milakov and Gimelshein, arXiv
1805.02867. Parts are whole tensors here, as kernels that are not ours return them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["sum_batch", "sum_head", "lse_token", "count", "tokens", "front"])
def merge_parts_kernel(
    parts,  # tuple of PARTS results [B, H, rows, D]
    sums,  # tuple of PARTS float32 [B, H, rows], natural logs
    out,  # [B * tokens, H, D]
    lse,  # float32 [B * tokens, H], if HAS_LSE
    part_batch,  # elements from one request to the next
    part_head,
    part_token,
    sum_batch,
    sum_head,
    out_token,
    out_head,
    lse_token,
    count,  # of the parts, how many there are; the others are not read
    tokens,  # of each request
    front,  # rows before the first of them
    PARTS: tl.constexpr,
    TOKENS: tl.constexpr,  # of one program
    DIM: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    """Merge some tokens of one head. Grid: (tokens / TOKENS, H, B)."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    dims = tl.arange(0, DIM)
    alive = token < tokens
    row = (front + token).to(tl.int64)
    sum_at = request * sum_batch + head * sum_head + row
    part_at = (request * part_batch + head * part_head + row * part_token)[:, None] + dims[None, :]

    largest = tl.full([TOKENS], float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        there = alive & (part < count)
        largest = tl.maximum(largest, tl.load(sums[part] + sum_at, mask=there, other=float("-inf")))
    largest = tl.where(alive, largest, 0.0)  # rows past the last token: inf - inf is NaN
    total = tl.where(alive, 0.0, 1.0)
    acc = tl.zeros([TOKENS, DIM], tl.float32)
    for part in tl.static_range(PARTS):
        there = alive & (part < count)
        weight = tl.exp(tl.load(sums[part] + sum_at, mask=there, other=float("-inf")) - largest)
        value = tl.load(parts[part] + part_at, mask=there[:, None], other=0.0)
        total += weight
        acc += weight[:, None] * value.to(tl.float32)
    place = request * tokens + token
    out_at = out + (place * out_token + head * out_head)[:, None] + dims[None, :]
    result = acc / total[:, None]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=alive[:, None])
    if HAS_LSE:
        tl.store(lse + place * lse_token + head, largest + tl.log(total), mask=alive)
