"""Keys and values as they come, in the dtype of activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.kv_quant import KVField, KVLayout, KVQuant

if TYPE_CHECKING:
    import torch

    from camshaft.contracts.attention import AttentionSpec

    from .components import KVNoneSettings


class PlainKV(KVQuant):
    """Fields `k` and `v`, [P, G, D] or [G, P, D] a page."""

    name = "none"

    def __init__(self, settings: KVNoneSettings) -> None:
        self.settings = settings

    def layout(self, spec: AttentionSpec, order: str) -> KVLayout:
        """See `KVQuant.layout`."""
        outer = (spec.page_tokens, spec.kv_heads)
        if order == "heads_first":
            outer = (spec.kv_heads, spec.page_tokens)
        return KVLayout(
            order,
            (
                KVField("k", (*outer, spec.head_dim), spec.dtype),
                KVField("v", (*outer, spec.value_dim), spec.dtype),
            ),
        )

    def write(
        self,
        kv: dict[str, torch.Tensor],
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        """See `KVQuant.write`."""
        if order == "heads_first":
            # [N, P, G, D] views, so that both indices stand side by side
            kv["k"].transpose(1, 2).index_put_((pages, offsets), k)
            kv["v"].transpose(1, 2).index_put_((pages, offsets), v)
            return
        kv["k"].index_put_((pages, offsets), k)
        kv["v"].index_put_((pages, offsets), v)

    def read(
        self, kv: dict[str, torch.Tensor], pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `KVQuant.read`."""
        flat = pages.reshape(-1)
        k, v = (
            kv[name].index_select(0, flat).view(*pages.shape, *kv[name].shape[1:]).to(dtype)
            for name in ("k", "v")
        )
        if order == "heads_first":
            return k, v
        return k.transpose(-3, -2), v.transpose(-3, -2)
