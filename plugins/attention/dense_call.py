"""One dense call on the device: gather its keys, attend by parts, merge the results."""

from __future__ import annotations

import torch

from camshaft.kernel_launch import compiles_only, launcher

from .calls import page_fields
from .dense import DenseCall, pieces
from .kernels.gather import gather_kernel
from .kernels.merge import merge_parts_kernel

MOST_PARTS = 8  # of one merge: a request's own keys, and 7 pieces of its context
GATHER_TOKENS = 64  # of one program
MERGE_TOKENS = 16  # of one program

Fields = dict[str, torch.Tensor]
Result = tuple[torch.Tensor, torch.Tensor]


def attend_dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
) -> Result:
    """Attend with cuDNN, and keep the logs of the sums.

    Plans are kept for each thread, shape and set of strides; where kernels are only compiled, none
    is made, and results are void.

    Args:
        q: [B, H, L, D], any strides.
        k: [B, G, S, D].
        v: [B, G, S, D].
        causal: Row i sees keys 0 to i, also when keys are more than rows.
        scale: Of scores.

    Returns:
        [B, H, L, D] in the memory order of `q`, and float32 [B, H, L].
    """
    if compiles_only():
        return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return out, lse.view(out.shape[:3])


def attend_call(
    call: DenseCall,
    block: int,
    scale: float,
    q: torch.Tensor,
    kv: Fields,
    table: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Attend with the queries of one call. Their keys and values are in their pages already.

    Args:
        call: What to compute.
        block: That it was cut with.
        scale: Of scores.
        q: [batch * tokens, H, D].
        kv: Pages "k" and "v", each [N, G, P, D] or in a quantised form with its scales.
        table: int32 [batch, pages].
        out: [batch * tokens, H, D]; written.
        lse: float32 [batch * tokens, H] for the logs of the sums, or None.
    """
    if call.padded:
        rows = q.new_empty((call.rows, *q.shape[1:]))  # what else is in them stays in their rows
        rows[call.front : call.front + call.tokens] = q
        q = rows
    queries = q.unflatten(0, (call.batch, call.rows)).transpose(1, 2)
    keys, values = gather(kv, table, call.context, call.rows, call.stored, q)
    results = [attend_dense(queries, keys, values, causal=True, scale=scale)]
    for first, count in pieces(call.context, block):
        keys, values = gather(kv, table, first, count, call.stored, q)
        results.append(attend_dense(queries, keys, values, causal=False, scale=scale))
    while len(results) > MOST_PARTS:
        results = [_merge_rows(results[:MOST_PARTS]), *results[MOST_PARTS:]]
    _merge(results, call.front, call.tokens, out, lse)


def attend_fresh(
    call: DenseCall,
    scale: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attend with the queries of a call over keys that came with them.

    Args:
        call: What to compute; it is `fresh`.
        scale: Of scores.
        q: [batch * tokens, H, D], contiguous as the next two: the shapes that are planned for.
        k: [batch * tokens, G, D].
        v: Likewise.
        out: [batch * tokens, H, D]; written.
    """
    shape = (call.batch, call.rows)
    queries, keys, values = (one.unflatten(0, shape).transpose(1, 2) for one in (q, k, v))
    result, _ = attend_dense(queries, keys, values, causal=True, scale=scale)
    out.unflatten(0, shape).copy_(result.transpose(1, 2))


def gather(
    kv: Fields, table: torch.Tensor, first: int, count: int, stored: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy keys and values out of their pages, in the dtype of activations.

    Args:
        kv: Pages "k" and "v", each [N, G, P, D] or in a quantised form with its scales.
        table: int32 [B, pages].
        first: Token of each request that comes first.
        count: Tokens of each.
        stored: Zeros stand for tokens from here on.
        like: [.., D], in the dtype of the result.

    Returns:
        [B, G, count, D] each, tokens first in memory.
    """
    batch, (_, kv_heads, page, _), dim = len(table), kv["k"].shape, like.shape[-1]
    keys, values = like.new_empty((2, batch, count, kv_heads, dim))
    launch = launcher(
        gather_kernel, KV_HEADS=kv_heads, TOKENS=GATHER_TOKENS, PAGE=page, DIM=dim, num_warps=4
    )
    launch(
        (-(-count // GATHER_TOKENS), kv_heads, batch),
        *page_fields(kv), table, keys, values, table.stride(0), first, count, stored,
    )  # fmt: skip
    return keys.transpose(1, 2), values.transpose(1, 2)


def _merge(
    results: list[Result], front: int, tokens: int, out: torch.Tensor, lse: torch.Tensor | None
) -> None:
    """Merge results into [batch * tokens, H, D], leaving out rows around the tokens."""
    (part, total), count = results[0], len(results)
    batch, heads, _, dim = part.shape
    filled = results + results[:1] * (MOST_PARTS - count) if count > 1 else results
    assert all(one.stride() == part.stride() for one, _ in results)
    launch = launcher(
        merge_parts_kernel, PARTS=len(filled), TOKENS=MERGE_TOKENS, DIM=dim,
        HAS_LSE=lse is not None, num_warps=4,
    )  # fmt: skip
    launch(
        (-(-tokens // MERGE_TOKENS), heads, batch),
        tuple(one for one, _ in filled), tuple(one for _, one in filled), out, lse,
        *part.stride()[:3], *total.stride()[:2], *out.stride()[:2],
        0 if lse is None else lse.stride(0), count, tokens, front,
    )  # fmt: skip


def _merge_rows(results: list[Result]) -> Result:
    """Merge results of one request into one of the same form, in float32."""
    part, total = results[0]
    out = torch.empty_like(part, dtype=torch.float32)
    heads, rows = part.shape[1:3]
    lse = total.new_empty((rows, heads))
    _merge(results, 0, rows, out[0].transpose(0, 1), lse)
    return out, lse.t().contiguous()[None]
