"""Long prompts through cuDNN's attention, everything else through the kernels of `triton`.

cuDNN is about twice as fast on long dense sequences, but it reads no pages and plans for 50 ms or
more whenever it meets a new shape. So requests with many new tokens are cut as `dense` says: their
keys are gathered from the pages, rows attend to their own part causally and to the context before
it in pieces, and the results are merged. What is left over runs the tile kernel. Where rows are all
the keys there are, as in a fresh prompt, nothing is gathered nor merged: `prepare` keeps a copy.

Rates of an H200 with 16 query and 8 kv heads
of 128 elements, bfloat16, 2026-11-30, in TFLOP/s: 543 for 2 prompts of 4,096 tokens, 579 for one of
8,192, 641 for one of 16,384; the tile kernel reaches 314.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.attention import AttentionBackend, GraphLevel

from .dense import MOST_BATCH, MOST_PIECE, DenseCall, covered_tokens, dense_calls
from .dense_call import attend_call, attend_fresh
from .launch import query_tiles
from .parts import Parts, prefill_of
from .triton import TritonAttention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from camshaft.contracts.attention import (
        AttentionLayer,
        AttentionMeta,
        AttentionSpec,
        SharedPrefixes,
    )
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import CudnnSettings

BLOCK = 1024  # tokens; with it a step of 8,192 has 8 shapes, and padding costs 1/16 of it at most
WARM_BLOCKS = 16  # calls with more rows are not planned ahead


@dataclass(slots=True)
class CudnnPlan:
    """What all layers of a group share.

    Attributes:
        calls: Of cuDNN.
        parts: For the kernels of `triton`.
        fresh: The layer's new keys and values, [T, G, D] each, if a call has no others.
    """

    calls: list[DenseCall]
    parts: Parts
    fresh: tuple[torch.Tensor, torch.Tensor] | None = None


class CudnnAttention(AttentionBackend):
    """Dense calls for long prompts over the pages of `triton`."""

    graph_level = GraphLevel.UNIFORM
    side_by_side = True
    needs_exact_host_lengths = True  # rows and pieces of context are cut on the host

    def __init__(self, settings: CudnnSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        self.settings = settings
        self.spec = spec
        self.tiled = TritonAttention(settings, spec, kv_quant)
        self.is_plain = kv_quant.name == "none"
        self.sharing_pays_from = self.tiled.sharing_pays_from

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Plain causal attention in 16-bit floats, on NVIDIA's cards from Ampere on."""
        reasons = TritonAttention.supports(spec, facts)
        number = facts.architecture.removeprefix("sm_")
        if facts.kind != "cuda" or not number.isdigit() or int(number) < 80:
            reasons.append(
                f"cuDNN's attention needs an NVIDIA card from sm_80 on, not {facts.name}"
            )
        elif not torch.backends.cudnn.is_available():
            reasons.append("this torch comes without cuDNN")
        if spec.dtype not in ("bfloat16", "float16"):
            reasons.append(f"cuDNN attends in bfloat16 and float16, not in {spec.dtype}")
        if spec.head_dim not in (64, 128):
            reasons.append(f"heads have {spec.head_dim} elements, not 64 or 128")
        if spec.window:
            reasons.append("it has no sliding window")
        if spec.sinks:
            reasons.append("it has no attention sinks")
        if spec.soft_cap:
            reasons.append("it has no soft cap")
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`. The pages of `triton`."""
        return self.tiled.kv_layout()

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> CudnnPlan:
        """Choose the requests for cuDNN, and make tiles of all other tokens."""
        calls = [] if capture else self._calls(meta)
        if not calls:
            return CudnnPlan([], self.tiled.plan(meta, capture=capture))
        single = meta.decode_requests
        parts: Parts = []
        if single:
            parts += self.tiled.plan(_leading(meta, single))
        parts += self._plan_tiles(meta, single, covered_tokens(calls, len(meta.host_context)))
        return CudnnPlan(calls, parts)

    def share(self, plan: CudnnPlan, shared: SharedPrefixes) -> None:
        """See `AttentionBackend.share`."""
        self.tiled.share(plan.parts, shared)

    def _calls(self, meta: AttentionMeta) -> list[DenseCall]:
        return dense_calls(
            meta.host_query_start, meta.host_context, self.settings.least_tokens, BLOCK
        )

    def _plan_tiles(self, meta: AttentionMeta, first: int, covered: NDArray[np.int32]) -> Parts:
        """List the tiles of requests from `first` on, without the tokens that are covered."""
        counts = np.diff(meta.host_query_start)[first:]
        skipped, context = covered[first:], meta.host_context[first:]
        tokens = self.tiled.prefill_blocks.rows // self.tiled.group
        tiles = query_tiles(counts - skipped, context + skipped, tokens)
        if not len(tiles):
            return []
        tiles[:, 1] += skipped[tiles[:, 0]]
        return [prefill_of(meta, first, len(meta.host_context), tiles)]

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """See `AttentionBackend.prepare`."""
        plan: CudnnPlan = meta.plan
        # quantised, a step reads back its own keys as well: the same answer from any chunks
        copy = self.is_plain and any(call.fresh for call in plan.calls)
        parts = [] if plan.calls else plan.parts  # with calls, parts are not all of the step
        prepared = self.tiled.prepared(layer, parts, qkv, kv, meta, copy=copy)
        if prepared is None:
            return None
        if prepared.k is not None and prepared.v is not None:
            plan.fresh = prepared.k, prepared.v
        return prepared.q

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """See `AttentionBackend.forward`."""
        plan: CudnnPlan = meta.plan
        self.tiled.attend(layer, plan.parts, q, k, v, kv, meta, out, lse)
        for call in plan.calls:
            here = slice(call.first, call.first + call.batch * call.tokens)
            if call.fresh and lse is None and plan.fresh is not None:
                keys, values = plan.fresh
                attend_fresh(call, layer.scale, q[here], keys[here], values[here], out[here])
                continue
            table = meta.page_table[call.request : call.request + call.batch]
            sums = None if lse is None else lse[here]
            attend_call(call, BLOCK, layer.scale, q[here], kv, table, out[here], sums)
        plan.fresh = None

    def warm_up(self, device: str, step_tokens: int) -> None:
        """Let cuDNN plan for the shapes that steps of this size will most likely have."""
        spec = self.spec
        dtype: torch.dtype = getattr(torch, spec.dtype)
        kv = {
            one.name: torch.zeros((1, *one.shape), dtype=getattr(torch, one.dtype), device=device)
            for one in self.kv_layout().fields
        }
        for call in self._likely(step_tokens):
            tokens = call.batch * call.tokens
            q = torch.zeros((tokens, spec.heads, spec.head_dim), dtype=dtype, device=device)
            pages = -(-call.stored // spec.page_tokens)
            table = torch.zeros((call.batch, pages), dtype=torch.int32, device=device)
            attend_call(call, BLOCK, 1.0, q, kv, table, torch.empty_like(q), None)

    def _likely(self, step_tokens: int) -> Iterator[DenseCall]:
        """Yield calls of every size without context, and the largest ones with any context."""
        most = min(WARM_BLOCKS, min(step_tokens, self.spec.max_context) // BLOCK)
        least = -(-max(self.settings.least_tokens, BLOCK) // BLOCK)
        for blocks in range(least, most + 1):
            rows = blocks * BLOCK
            batch = 1
            while batch <= MOST_BATCH and batch * rows <= step_tokens:
                yield DenseCall(0, 0, batch, rows, rows, 0, 0, rows)
                batch *= 2
        before = max(0, self.spec.max_context - most * BLOCK) // BLOCK
        whole = min(2 * MOST_PIECE, 1 << before.bit_length()) - 1  # has a piece of every size
        for blocks in range(max(least, most - 1), most + 1):
            rows, context = blocks * BLOCK, whole * BLOCK
            if context:
                yield DenseCall(0, 0, 1, rows, rows, 0, context, context + rows)


def _leading(meta: AttentionMeta, requests: int) -> AttentionMeta:
    """Return the view of the first requests; tokens keep their places."""
    return replace(
        meta,
        query_start=meta.query_start[: requests + 1],
        context=meta.context[:requests],
        page_table=meta.page_table[:requests],
        host_query_start=meta.host_query_start[: requests + 1],
        host_context=meta.host_context[:requests],
    )
