"""Attention of many requests' single queries over prefixes that they share: keys are read once.

Sources: Juravsky et al., Hydragen, arXiv 2402.05099; Ye et al., FlashInfer, arXiv 2501.01005, for
work that is cut evenly over a fixed number of programs: a recorded launch serves any sharing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .tile import attend_tile


@triton.jit(
    do_not_specialize=["prefix_at", "table_row"],
    do_not_specialize_on_alignment=["query_start", "table", "members", "items", "runs"],
)
def cascade_kernel(
    q,  # [T, H, D]
    k_pages,  # [pages, G, P, D]
    v_pages,
    k_scales,  # float16 [pages, G, P, 1 or 2], or None: see `stored`
    v_scales,
    table,  # int32 [B, pages]
    query_start,  # [B + 1]
    members,  # int32 [B] requests, those of a tile in a row
    items,  # int32 [items, 5]: first member, members, first key, end of keys, first row of results
    runs,  # int32 [programs + 1] where the items of each program begin
    partial,  # float32 [.., D]; from `prefix_at` on [rows, H, D], a row for each item and member
    sums,  # float32 [..], likewise
    q_token,  # elements from one token to the next
    q_head,
    table_row,
    prefix_at,
    scale,
    cap,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,  # at least members of a tile times GROUP
    KEYS: tl.constexpr,  # keys of an item are a multiple
    HAS_CAP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend over pieces of prefixes for one kv head. Grid: (G, programs)."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    kv_head = tl.program_id(0)
    program = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    member = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    for item in range(tl.load(runs + program), tl.load(runs + program + 1)):
        item_at = items + item * 5
        first = tl.load(item_at)
        alive = member < tl.load(item_at + 1)
        low = tl.load(item_at + 2)
        high = tl.load(item_at + 3)
        request = tl.load(members + first + member, mask=alive, other=0)
        token = tl.load(query_start + request, mask=alive, other=0).to(tl.int64)
        q_at = q + token[:, None] * q_token + head[:, None] * q_head + dims[None, :]
        queries = tl.load(q_at, mask=alive[:, None], other=0.0)

        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        # all members have the same pages here
        pages_at = table + tl.load(members + first).to(tl.int64) * table_row
        for at in range(low, high, KEYS):
            keys = at + tl.arange(0, KEYS)
            best, total, acc = attend_tile(
                queries,
                best,
                total,
                acc,
                k_pages,
                v_pages,
                k_scales,
                v_scales,
                pages_at,
                keys,
                low,
                high,
                rows,
                kv_head,
                scale,
                cap,
                False,
                0,
                HAS_CAP,
                KV_HEADS,
                PAGE,
                DIM,
            )

        row = tl.load(item_at + 4) + member
        slot = prefix_at + row * (KV_HEADS * GROUP) + head
        tl.store(sums + slot, best + tl.log2(total), mask=alive)
        slot_at = partial + slot.to(tl.int64)[:, None] * DIM + dims[None, :]
        tl.store(slot_at, acc / total[:, None], mask=alive[:, None])
