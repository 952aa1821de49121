"""Paged attention in Triton, for NVIDIA and AMD accelerators from the same source.

Requests with few query tokens run the split kernel, all others the tile kernel; see `kernels/`.
Prefixes that many decoding requests share are read once, by the cascade kernel.
Pages lie heads first, [N, G, P, D], so that a program reads P * D elements in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.attention import AttentionBackend, GraphLevel
from camshaft.facts import Capability

from .calls import Calls, Prepared
from .cascade import Cascade
from .device import OnDevice, look_at, require_conversion, stream_of
from .forms import require_known_form, token_bytes
from .launch import (
    MOST_SPLITS,
    cascade_blocks,
    cascade_programs,
    decode_blocks,
    decode_cut,
    most_programs,
    power_of_two,
    prefill_blocks,
    query_tiles,
)
from .pages import ORDER
from .parts import Decode, Parts, Prefill, prefill_of, requests_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.attention import (
        AttentionLayer,
        AttentionMeta,
        AttentionSpec,
        SharedPrefixes,
    )
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import TritonSettings

MOST_ROWS = 128  # query heads of a kv head, times query tokens in the split kernel


class TritonAttention(AttentionBackend):
    """Split decode and tiled prefill over pages, with windows, soft caps and sinks.

    A captured plan holds views of the step's own tensors and scratch that is never freed, so a
    replay serves whatever lengths those tensors hold by then.
    """

    graph_level = GraphLevel.UNIFORM
    side_by_side = True

    def __init__(self, settings: TritonSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        require_known_form(kv_quant, "triton")
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.group = spec.heads // spec.kv_heads
        self.itemsize: int = getattr(torch, spec.dtype).itemsize
        self.prefill_blocks = prefill_blocks(self.itemsize, spec.head_dim, self.group)
        self.cascade_blocks = cascade_blocks(self.itemsize, spec.head_dim, self.group)
        if settings.cascade and not spec.window:
            self.sharing_pays_from = -(-settings.cascade_bytes // token_bytes(self.kv_layout()))
        # by stream and size: what runs side by side shares none
        self._scratch: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._cascade_scratch: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._counters: dict[tuple[int, int], torch.Tensor] = {}
        self.calls = Calls(spec, self.prefill_blocks, self.cascade_blocks)
        self._device: OnDevice | None = None

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Causal attention in the usual head sizes, wherever triton compiles."""
        reasons = []
        if Capability.TRITON not in facts.capabilities:
            reasons.append(f"triton does not run on {facts.name}")
        if spec.dtype not in ("float32", "bfloat16", "float16"):
            reasons.append(f"it does not compute in {spec.dtype}")
        if spec.head_dim not in (16, 32, 64, 128, 256):
            reasons.append(f"heads have {spec.head_dim} elements, not 16, 32, 64, 128 or 256")
        if spec.head_dim != spec.value_dim:
            reasons.append(f"keys have {spec.head_dim} elements and values {spec.value_dim}")
        if spec.heads // spec.kv_heads > MOST_ROWS:
            reasons.append(f"more than {MOST_ROWS} query heads share a kv head")
        if not spec.causal:
            reasons.append("it is causal only")
        if spec.deterministic:
            reasons.append("its results depend on the batch; those of 'invariant' do not")
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> Parts:
        """Share the requests out among kernels and choose the number of splits."""
        counts = meta.host_query_start[1:] - meta.host_query_start[:-1]
        single = meta.decode_requests
        parts: Parts = []
        if single:
            parts.append(self._plan_decode(meta, counts, 0, single, capture))
        if single < len(counts):
            most = power_of_two(int(counts[single:].max()))
            few = most <= self.settings.split_tokens and most * self.group <= MOST_ROWS
            if few:
                parts.append(self._plan_decode(meta, counts, single, len(counts), capture))
            else:
                parts.append(self._plan_prefill(meta, counts, single))
        return parts

    def _plan_decode(
        self,
        meta: AttentionMeta,
        counts: NDArray[np.int32],
        first: int,
        last: int,
        capture: bool,
    ) -> Decode:
        queries = power_of_two(int(counts[first:last].max()))
        longest = int((meta.host_context[first:last] + counts[first:last]).max())
        if capture:  # a replay may come with any length that the table has pages for
            longest = meta.page_table.shape[1] * self.spec.page_tokens
        if self.spec.window:
            longest = min(longest, self.spec.window + queries - 1)
        device = meta.context.device
        on, pairs = self._on(device), (last - first) * self.spec.kv_heads
        cascade = None
        if meta.shared is not None and self.sharing_pays_from and first == 0:
            cascade = self._cascade(last, device)
            cascade.load(meta.shared)
        is_busy = on.is_roomy and cascade is None and 2 * pairs > on.processors
        blocks, splits = decode_cut(
            decode_blocks(self.itemsize, self.spec.head_dim, queries * self.group, is_busy=is_busy),
            pairs,
            longest,
            on.processors,
            min(self.settings.splits, MOST_SPLITS - (cascade.programs if cascade else 0)),
        )
        partial, sums = None, None
        if cascade is not None:
            partial, sums = self._scratch_with(cascade, last * splits, device)
        elif splits > 1:
            partial, sums = self._scratch_of(queries, device)
        # every program prepares for itself, which costs little where there is one wave of them
        prepares = (
            self.settings.prepare_in_decode
            and queries == 1
            and meta.decode_requests == len(counts)
            and cascade is None
            and not is_busy
            and pairs * splits <= blocks.resident * on.processors
        )
        return Decode(
            requests_of(meta, first, last),
            queries,
            blocks,
            splits,
            partial,
            sums,
            cascade,
            merges=self.settings.merge_in_decode,
            counters=self._counters_of(pairs, device) if splits > 1 else None,
            prepares=prepares,
        )

    def _cascade(self, requests: int, device: torch.device) -> Cascade:
        blocks = self.cascade_blocks
        programs = cascade_programs(self.spec.kv_heads, self._on(device).processors)
        return Cascade(requests, blocks.rows // self.group, blocks.keys, programs, device)

    def share(self, plan: Parts, shared: SharedPrefixes) -> None:
        """See `AttentionBackend.share`."""
        decode = plan[0]
        assert isinstance(decode, Decode)
        assert decode.cascade is not None, "the plan was made with `shared`"
        decode.cascade.load(shared)

    def _plan_prefill(self, meta: AttentionMeta, counts: NDArray[np.int32], first: int) -> Prefill:
        tokens = self.prefill_blocks.rows // self.group
        tiles = query_tiles(counts[first:], meta.host_context[first:], tokens)
        return prefill_of(meta, first, len(counts), tiles)

    def _on(self, device: torch.device) -> OnDevice:
        """Return facts of the device, and let launches know them."""
        if self._device is None:
            require_conversion(device, self.kv_quant.name)
            self._device = look_at(device, self.settings.early_launch)
            self.calls.early = self._device.early
        return self._device

    def _scratch_of(self, queries: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scratch that holds every split count of so many query tokens.

        Kept for good: graphs hold its address.
        """
        key = stream_of(device), queries
        if key not in self._scratch:
            rows = most_programs(self._on(device).processors) * queries * self.group
            self._scratch[key] = (
                torch.empty((rows, self.spec.head_dim), dtype=torch.float32, device=device),
                torch.empty(rows, dtype=torch.float32, device=device),
            )
        return self._scratch[key]

    def _counters_of(self, pairs: int, device: torch.device) -> torch.Tensor | None:
        """Return zeros for so many requests times kv heads; kernels leave them as zeros."""
        if not self.settings.merge_in_decode:
            return None
        key = stream_of(device), power_of_two(pairs)
        if key not in self._counters:
            self._counters[key] = torch.zeros(key[1], dtype=torch.int32, device=device)
        return self._counters[key]

    def _scratch_with(
        self, cascade: Cascade, splits: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scratch for so many splits of requests, and for a cascade's pieces behind them."""
        rows = power_of_two((splits + cascade.rows) * self.spec.heads)
        key = stream_of(device), rows
        if key not in self._cascade_scratch:
            self._cascade_scratch[key] = (
                torch.empty((rows, self.spec.head_dim), dtype=torch.float32, device=device),
                torch.empty(rows, dtype=torch.float32, device=device),
            )
        return self._cascade_scratch[key]

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
        self.attend(layer, meta.plan, q, k, v, kv, meta, out, lse)

    def attend(
        self,
        layer: AttentionLayer,
        parts: Parts,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Do as `forward`, with a plan other than the step's."""
        if k is not None and v is not None and k.shape[0]:
            self._on(k.device)
            self.calls.write(k, v, kv, meta)
        for part in parts:
            if isinstance(part, Decode):
                self.calls.decode(layer, part, q, kv, meta, out, lse)
            else:
                self.calls.prefill(layer, part, q, kv, out, lse)

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """See `AttentionBackend.prepare`."""
        prepared = self.prepared(layer, meta.plan, qkv, kv, meta, copy=False)
        return None if prepared is None else prepared.q

    def prepared(
        self,
        layer: AttentionLayer,
        parts: Parts | None,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
        *,
        copy: bool,
    ) -> Prepared | None:
        """Do as `prepare`, with a plan other than the step's.

        Keeps a copy of keys and values if asked for one. Where the decode kernel can do it all,
        the queries that are returned are those that were projected.
        """
        if not self.settings.fuse_prepare or not qkv.shape[0]:
            return None
        assert qkv.stride(1) == 1, "a row of the projection lies in one piece"
        self._on(qkv.device)
        part = parts[0] if parts else None
        if isinstance(part, Decode) and part.prepares and not copy:
            part.projected = qkv
            heads, dim = layer.heads, layer.head_dim
            return Prepared(qkv[:, : heads * dim].view(-1, heads, dim), None, None)
        return self.calls.prepare(layer, qkv, kv, meta, copy=copy)
