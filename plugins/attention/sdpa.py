"""Attention through torch's scaled dot product attention, over gathered pages.

Requests with one token are padded to the longest of them and attend in one call. Requests with
several tokens attend one by one, with the causal kernel when nothing is cached. Fits CPUs, where
torch has a flash kernel but nothing that reads page tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from camshaft.contracts.attention import AttentionBackend

from .pages import ORDER, pages_of

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import SdpaSettings


@dataclass(slots=True)
class Decode:
    """Leading requests with one token each.

    Attributes:
        count: How many.
        reads: Where their pages are.
        mask: [count, 1, 1, n * P] added to scores: 0 where the key is seen, else minus infinity;
            None when all are seen.
    """

    count: int
    reads: Any
    mask: torch.Tensor | None


@dataclass(slots=True)
class Prefill:
    """A request with several tokens.

    Attributes:
        tokens: Its place in the step.
        reads: Where its pages are.
        keys: Keys to attend over, its own included.
        mask: [count, keys] as in `Decode`; None stands for nothing before, where queries see all
            keys or, in causal attention, those up to their own.
    """

    tokens: slice
    reads: Any
    keys: int
    mask: torch.Tensor | None


@dataclass(slots=True)
class SdpaPlan:
    """What all layers of a group share."""

    writes: Any
    decode: Decode | None
    prefills: list[Prefill]


class SdpaAttention(AttentionBackend):
    """Gathers pages, then calls `scaled_dot_product_attention`."""

    side_by_side = True
    needs_zeroed_pages = True  # masked keys still meet a zero weight, and 0 * NaN is NaN

    def __init__(self, settings: SdpaSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.pages = pages_of(kv_quant, spec.kv_heads, spec.page_tokens)
        self.dtype: torch.dtype = getattr(torch, spec.dtype)

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Neither sinks, soft caps nor determinism; keys and values of one size."""
        reasons = []
        if spec.sinks:
            reasons.append("it has no attention sinks")
        if spec.soft_cap:
            reasons.append("it has no soft cap")
        if spec.deterministic:
            reasons.append("its results depend on the batch")
        if spec.window and not spec.causal:
            reasons.append("it has no window that looks ahead")
        if spec.head_dim != spec.value_dim:
            reasons.append(f"keys have {spec.head_dim} elements and values {spec.value_dim}")
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> SdpaPlan:
        """Build masks and page lists once for all layers."""
        tables = meta.page_table.long()
        single = meta.decode_requests
        decode = self._plan_decode(meta, tables[:single]) if single else None
        context = meta.host_context.tolist()
        starts = meta.host_query_start.tolist()
        prefills = [
            self._plan_prefill(starts[at], starts[at + 1], context[at], tables[at : at + 1])
            for at in range(single, len(context))
        ]
        return SdpaPlan(self.pages.writes(meta), decode, prefills)

    def _plan_decode(self, meta: AttentionMeta, tables: torch.Tensor) -> Decode:
        count, page = len(tables), self.spec.page_tokens
        longest = int(meta.host_context[:count].max()) + 1
        pages = tables[:, : -(-longest // page)]
        last = meta.context[:count].long()[:, None]
        place = torch.arange(pages.shape[1] * page, device=tables.device)[None]
        seen = place <= last
        if self.spec.window:
            seen &= place > last - self.spec.window
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=tables.device)
        mask.masked_fill_(~seen, float("-inf"))
        return Decode(count, self.pages.reads(pages), mask[:, None, None])

    def _plan_prefill(self, first: int, last: int, context: int, table: torch.Tensor) -> Prefill:
        keys = context + last - first
        pages = table[:, : -(-keys // self.spec.page_tokens)]
        reads = self.pages.reads(pages)
        assert self.spec.causal or not context, "a text that sees itself whole comes in one step"
        if not context and not self.spec.window:
            return Prefill(slice(first, last), reads, keys, None)
        place = torch.arange(keys, device=table.device)
        query = torch.arange(context, keys, device=table.device)[:, None]
        seen = place <= query
        if self.spec.window:
            seen &= place > query - self.spec.window
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=table.device)
        return Prefill(slice(first, last), reads, keys, mask.masked_fill_(~seen, float("-inf")))

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
        """See `AttentionBackend.forward`. Does not return `lse`."""
        assert lse is None, "sdpa does not return the log of the sum"
        plan: SdpaPlan = meta.plan
        if k is not None and v is not None:
            self.pages.write(kv, plan.writes, k, v)
        grouped = layer.heads != layer.kv_heads
        if plan.decode is not None:
            one = plan.decode
            keys, values = self.pages.read(kv, one.reads, q.dtype)
            # query heads of a group stand as rows over the same keys: read once, no repetition
            rows = q[: one.count].view(one.count, layer.kv_heads, -1, layer.head_dim)
            result = scaled_dot_product_attention(
                rows, keys, values, attn_mask=one.mask, scale=layer.scale
            )
            out[: one.count] = result.view(one.count, layer.heads, layer.value_dim)
        for part in plan.prefills:
            out[part.tokens] = self._prefill(layer, q[part.tokens], k, v, kv, part, grouped)

    def _prefill(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: dict[str, torch.Tensor],
        part: Prefill,
        grouped: bool,
    ) -> torch.Tensor:
        fresh = part.mask is None and self.pages.is_exact  # nothing cached: no gather
        if fresh and k is not None and v is not None:
            keys = k[part.tokens].transpose(0, 1).unsqueeze(0)
            values = v[part.tokens].transpose(0, 1).unsqueeze(0)
        else:
            keys, values = self.pages.read(kv, part.reads, q.dtype)
            keys, values = keys[:, :, : part.keys], values[:, :, : part.keys]
        result = scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=part.mask,
            is_causal=part.mask is None and self.spec.causal,
            scale=layer.scale,
            enable_gqa=grouped,
        )
        return result[0].transpose(0, 1)
