"""Reference attention: one query token at a time, written for trust instead of speed.

A token's result is computed by calls whose shapes depend on its own position alone, so it is the
same to the bit in any batch and any chunking. Every other backend is tested against this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from camshaft.contracts.attention import AttentionBackend

from .pages import ORDER, pages_of

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import ReferenceSettings


class ReferenceAttention(AttentionBackend):
    """Softmax attention as it is defined, in float32, over exactly the visible keys."""

    side_by_side = True

    def __init__(self, settings: ReferenceSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.pages = pages_of(kv_quant, spec.kv_heads, spec.page_tokens)

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Everything but windows without causality, on every device that torch computes on."""
        ahead = spec.window and not spec.causal
        return ["it has no window that looks ahead"] if ahead else []

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> Any:  # noqa: ANN401
        """Return where tokens are written, and each request's pages and place in the step."""
        context = meta.context.tolist()
        starts = meta.host_query_start.tolist()
        tables = meta.page_table.long()
        page = self.spec.page_tokens
        requests = []
        for index, before in enumerate(context):
            count = starts[index + 1] - starts[index]
            pages = tables[index : index + 1, : -(-(before + count) // page)]
            requests.append((starts[index], before, count, self.pages.reads(pages)))
        return self.pages.writes(meta), requests

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
        writes, requests = meta.plan
        if k is not None and v is not None:
            self.pages.write(kv, writes, k, v)
        for start, before, count, reads in requests:
            keys, values = self.pages.read(kv, reads, torch.float32)
            for place in range(count):
                last = before + (place + 1 if self.spec.causal else count)
                first = max(0, last - layer.window) if layer.window else 0
                result, total = attend_one(
                    q[start + place].float(),
                    keys[0, :, first:last],
                    values[0, :, first:last],
                    layer,
                )
                out[start + place] = result.to(out.dtype)
                if lse is not None:
                    lse[start + place] = total


def attend_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with one query token over the keys that it sees.

    Args:
        q: float32 [H, D].
        k: float32 [G, S, D].
        v: float32 [G, S, Dv].
        layer: Scale, soft cap and sinks.

    Returns:
        [H, Dv] and the log of the sum of exponentials [H], sinks included.
    """
    groups = k.shape[0]
    grouped = q.view(groups, -1, q.shape[-1])  # query heads of one kv head side by side
    scores = torch.matmul(grouped, k.contiguous().transpose(1, 2)) * layer.scale
    if layer.soft_cap:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(groups, -1, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    total = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if layer.sinks is not None:
        weights = weights[..., :-1]
    result = torch.matmul(weights, v.contiguous())
    return result.reshape(q.shape[0], -1), total.reshape(-1)
