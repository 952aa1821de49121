"""The faster attention for a CPU that this machine has: compiled operations, or else torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.contracts.attention import AttentionBackend
from camshaft.facts import DeviceFacts
from camshaft.native.attention import FORMS

from .components import NativeSettings, SdpaSettings
from .native import NativeAttention
from .sdpa import SdpaAttention

if TYPE_CHECKING:
    import torch

    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant

    from .components import CpuSettings

_HERE = DeviceFacts("cpu", "this processor", 0, frozenset())


class CpuAttention(AttentionBackend):
    """`native` where it can serve a group, `sdpa` where it cannot.

    Attributes:
        chosen: Which of the two it is here.
    """

    def __init__(self, settings: CpuSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        self.settings = settings
        is_native = kv_quant.name in FORMS and not NativeAttention.supports(spec, _HERE)
        self.chosen: AttentionBackend = (
            NativeAttention(NativeSettings(), spec, kv_quant)
            if is_native
            else SdpaAttention(SdpaSettings(), spec, kv_quant)
        )
        self.graph_level = self.chosen.graph_level
        self.needs_exact_host_lengths = self.chosen.needs_exact_host_lengths
        self.needs_zeroed_pages = self.chosen.needs_zeroed_pages
        self.sharing_pays_from = self.chosen.sharing_pays_from
        self.side_by_side = self.chosen.side_by_side

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """What one of the two supports; else the reasons of both."""
        native = NativeAttention.supports(spec, facts)
        sdpa = SdpaAttention.supports(spec, facts)
        if not native or not sdpa:
            return []
        return [f"native: {'; '.join(native)}", f"sdpa: {'; '.join(sdpa)}"]

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.chosen.kv_layout()

    def warm_up(self, device: str, step_tokens: int) -> None:
        """See `AttentionBackend.warm_up`."""
        self.chosen.warm_up(device, step_tokens)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> Any:  # noqa: ANN401
        """See `AttentionBackend.plan`."""
        return self.chosen.plan(meta, capture=capture)

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """See `AttentionBackend.prepare`."""
        return self.chosen.prepare(layer, qkv, kv, meta)

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
        self.chosen.forward(layer, q, k, v, kv, meta, out, lse)
