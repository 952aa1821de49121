"""Attention by flash-attn, as that library publishes it, over pages.

Version 3 (`flash_attn_interface`) is taken where it is installed, else version 2 (`flash_attn`),
which reads pages of 256 tokens or a multiple of that.

Source: Dao, "FlashAttention-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv
2407.08608. Both read pages through their strides, so that the pages lie heads first, as those of
the other backends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import pad

from camshaft.contracts.attention import AttentionBackend, GraphLevel

from .libraries import common_limits, is_installed, load, require_plain_pages
from .pages import ORDER

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import FlashAttnSettings

VERSION_2, VERSION_3 = "flash_attn", "flash_attn_interface"
INSTALL = "flash-attn is not installed; `pip install flash-attn --no-build-isolation`"
PAGE_OF_VERSION_2 = 256


@dataclass(slots=True)
class Part:
    """A run of requests that one call attends for.

    Attributes:
        tokens: Their tokens in the step.
        lengths: int32 [B] keys of each request, its new ones included.
        table: int32 [B, pages].
        query_start: int32 [B + 1]; None for requests with one token each.
        most_queries: Of one request.
        most_keys: Of one request, an upper bound.
    """

    tokens: slice
    lengths: torch.Tensor
    table: torch.Tensor
    query_start: torch.Tensor | None
    most_queries: int
    most_keys: int


@dataclass(slots=True)
class FlashPlan:
    """What all layers of a group share.

    Attributes:
        parts: Calls of a layer.
        captured: The step is recorded, and its lengths are those of each replay.
        first_layer: The layer that brings the lengths of a recorded step up to date.
    """

    parts: list[Part]
    captured: bool
    first_layer: int | None = None


class FlashAttnAttention(AttentionBackend):
    """One call for requests with one token, one for the others."""

    graph_level = GraphLevel.SINGLE_TOKEN
    side_by_side = True
    needs_zeroed_pages = True  # the library does not say that what it masks is never multiplied

    def __init__(self, settings: FlashAttnSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        require_plain_pages(kv_quant, "flash_attn")
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.is_version_3 = is_installed(VERSION_3)
        self.library = load(VERSION_3 if self.is_version_3 else VERSION_2, "flash_attn")

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """The library on NVIDIA, where it is installed."""
        reasons = common_limits(spec, facts)
        if spec.head_dim > 256 or spec.head_dim % 8:
            reasons.append(f"heads have {spec.head_dim} elements, not a multiple of 8 up to 256")
        if is_installed(VERSION_3):
            return reasons
        if not is_installed(VERSION_2):
            reasons.append(INSTALL)
        if spec.page_tokens % PAGE_OF_VERSION_2:
            reasons.append(
                f"version 2 of flash-attn reads pages of {PAGE_OF_VERSION_2} tokens or a multiple; "
                f"set cache.page_tokens, which is {spec.page_tokens}"
            )
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> FlashPlan:
        """Cut the step at the border between decode and prefill."""
        single, requests = meta.decode_requests, len(meta.host_context)
        assert not capture or single == requests, "only decode steps are recorded"
        ends = [(0, single)] if single else []
        if single < requests:
            ends.append((single, requests))
        return FlashPlan([self._part(meta, *one) for one in ends], capture)

    def _part(self, meta: AttentionMeta, first: int, last: int) -> Part:
        starts = meta.host_query_start
        counts = np.diff(starts[first : last + 1])
        queries = meta.query_start[first : last + 1]
        begin = int(starts[first])
        return Part(
            slice(begin, int(starts[last])),
            (meta.context[first:last] + queries.diff()).int(),
            meta.page_table[first:last],
            None if last <= meta.decode_requests else (queries - begin).int(),
            int(counts.max()),
            int((meta.host_context[first:last] + counts).max()),
        )

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
        if k is not None and v is not None:
            self.kv_quant.write(kv, meta.write_page, meta.write_offset, k, v, ORDER)
        plan: FlashPlan = meta.plan
        if plan.captured:
            self._follow(plan, meta, layer)
        # [N, P, G, D] views of pages that lie heads first
        pages = kv["k"].transpose(1, 2), kv["v"].transpose(1, 2)
        for part in plan.parts:
            call = self._decode if part.query_start is None else self._prefill
            result, sums = call(part, q[part.tokens], pages, self._shared(layer))
            out[part.tokens] = result
            if lse is not None:
                lse[part.tokens] = sums

    def _follow(self, plan: FlashPlan, meta: AttentionMeta, layer: AttentionLayer) -> None:
        """Record, once a step, how lengths follow from the buffer that a replay finds."""
        if plan.first_layer is None:
            plan.first_layer = layer.index
        if plan.first_layer == layer.index:
            for part in plan.parts:
                torch.add(meta.context[part.tokens], 1, out=part.lengths)

    def _shared(self, layer: AttentionLayer) -> dict[str, Any]:
        window = (layer.window - 1, 0) if layer.window else (-1, -1)  # keys before the query, after
        return {
            "softmax_scale": layer.scale,
            "causal": True,
            "window_size": window,
            "softcap": layer.soft_cap,
        }

    def _decode(
        self,
        part: Part,
        q: torch.Tensor,
        pages: tuple[torch.Tensor, torch.Tensor],
        shared: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return results [B, H, D] and sums [B, H]."""
        table = {"page_table" if self.is_version_3 else "block_table": part.table}
        result, sums, *_ = self.library.flash_attn_with_kvcache(
            q[:, None], *pages, cache_seqlens=part.lengths, return_softmax_lse=True,
            **table, **shared,
        )  # fmt: skip
        return result[:, 0], sums[..., 0]

    def _prefill(
        self,
        part: Part,
        q: torch.Tensor,
        pages: tuple[torch.Tensor, torch.Tensor],
        shared: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return results [T, H, D] and sums [T, H]."""
        if self.is_version_3:
            result, sums, *_ = self.library.flash_attn_with_kvcache(
                q, *pages, cache_seqlens=part.lengths, page_table=part.table,
                cu_seqlens_q=part.query_start, max_seqlen_q=part.most_queries,
                return_softmax_lse=True, **shared,
            )  # fmt: skip
        else:
            key_start = pad(part.lengths.cumsum(0), (1, 0)).int()
            result, sums, *_ = self.library.flash_attn_varlen_func(
                q, *pages, cu_seqlens_q=part.query_start, cu_seqlens_k=key_start,
                max_seqlen_q=part.most_queries, max_seqlen_k=part.most_keys,
                block_table=part.table, return_attn_probs=True, **shared,
            )  # fmt: skip
        return result, sums.T
