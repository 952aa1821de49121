"""Attention over pages on a CPU, by compiled operations: nothing is gathered and nothing padded.

All requests of a step attend in one call, whatever their lengths, and norms, rotary embedding and
the write into pages are one call before it. Both read lengths and page tables when they run, so a
recorded step serves whatever these hold by then. See the sources in `camshaft.native`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft import native
from camshaft.contracts.attention import AttentionBackend, GraphLevel
from camshaft.errors import PluginError
from camshaft.native.attention import (
    FORMS,
    WIDEST,
    Heads,
    Pages,
    Rule,
    Turn,
    attend,
    rotate,
)

from .pages import ORDER, pages_of

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import NativeSettings


class NativeAttention(AttentionBackend):
    """Flash attention for prompts and decodes, over pages of any form in `FORMS`."""

    graph_level = GraphLevel.ALWAYS
    side_by_side = True

    def __init__(self, settings: NativeSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        if kv_quant.name not in FORMS:
            raise PluginError(
                f"attention 'native' cannot read keys and values stored as '{kv_quant.name}'. "
                f"Set quant.kv to one of {', '.join(FORMS)}, or take attention 'sdpa'."
            )
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.form = FORMS[kv_quant.name]
        self.pages = pages_of(kv_quant, spec.kv_heads, spec.page_tokens)
        self.heads = Heads(spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim)

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Head sizes that are multiples of 16, where the operations can be compiled."""
        reasons = []
        if facts.kind != "cpu":
            reasons.append(f"it runs on CPUs, and {facts.name} is none")
        elif not native.expected():
            reasons += native.reasons()
        if spec.dtype not in ("float32", "bfloat16"):
            reasons.append(f"it does not compute in {spec.dtype}")
        for name, size in (("keys", spec.head_dim), ("values", spec.value_dim)):
            if size % 16 or size > WIDEST:
                reasons.append(f"{name} have {size} elements, no multiple of 16 up to {WIDEST}")
        if spec.window and not spec.causal:
            reasons.append("it has no window that looks ahead")
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> None:
        """Prepare nothing: what a step is, its tensors say."""

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor:
        """See `AttentionBackend.prepare`."""
        assert qkv.stride(1) == 1, "a row of the projection lies in one piece"
        rope = layer.rope
        turn = Turn(
            None if rope is None else rope.cos,
            None if rope is None else rope.sin,
            layer.q_norm,
            layer.k_norm,
            layer.norm_eps,
        )
        q = qkv.new_empty((len(qkv), layer.heads, layer.head_dim))
        rotate(
            qkv,
            self.heads,
            turn,
            meta.positions,
            self._pages(kv),
            meta.write_page,
            meta.write_offset,
            q,
        )
        return q

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
            self.pages.write(kv, self.pages.writes(meta), k, v)
        rule = Rule(layer.scale, layer.window, layer.soft_cap, layer.sinks, self.spec.causal)
        attend(
            q,
            self.heads,
            rule,
            self._pages(kv),
            meta.query_start,
            meta.context,
            meta.page_table,
            out,
            lse,
        )

    def _pages(self, kv: dict[str, torch.Tensor]) -> Pages:
        return Pages(kv["k"], kv["v"], kv.get("k_scale"), kv.get("v_scale"), self.form)
