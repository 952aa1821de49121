"""Paged attention in Triton, for NVIDIA and AMD accelerators from the same source.

Requests with few query tokens run the split kernel, all others the tile kernel; see `kernels/`.
Prefixes that many decoding requests share are read once, by the cascade kernel.
Pages lie heads first, [N, G, P, D], so that a program reads P * D elements in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.attention import AttentionBackend, GraphLevel
from camshaft.errors import PluginError
from camshaft.facts import Capability

from .cascade import Cascade
from .kernels.cascade import cascade_kernel
from .kernels.decode import decode_kernel, merge_kernel
from .kernels.prefill import prefill_kernel
from .kernels.prepare import prepare_kernel
from .kernels.write import write_kernel
from .launch import (
    MOST_SPLITS,
    cascade_blocks,
    cascade_programs,
    decode_blocks,
    most_programs,
    power_of_two,
    prefill_blocks,
    query_tiles,
    split_count,
)
from .pages import ORDER
from .parts import Decode, Parts, Prefill, requests_of

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

LOG2_E = 1.4426950408889634
MOST_ROWS = 128  # query heads of a kv head, times query tokens in the split kernel
WRITE_ELEMENTS = 2048  # of one program of the write kernel
PREPARE_ELEMENTS = 1024  # of one program of the prepare kernel


class TritonAttention(AttentionBackend):
    """Split decode and tiled prefill over pages, with windows, soft caps and sinks.

    A captured plan holds views of the step's own tensors and scratch that is never freed, so a
    replay serves whatever lengths those tensors hold by then.
    """

    graph_level = GraphLevel.UNIFORM

    def __init__(self, settings: TritonSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        if kv_quant.name != "none":
            raise PluginError(
                f"attention 'triton' cannot read keys and values stored as '{kv_quant.name}'. "
                "Set kv_quant to none, or take attention 'sdpa'."
            )
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.group = spec.heads // spec.kv_heads
        self.itemsize: int = getattr(torch, spec.dtype).itemsize
        self.prefill_blocks = prefill_blocks(self.itemsize, spec.head_dim, self.group)
        self.cascade_blocks = cascade_blocks(self.itemsize, spec.head_dim, self.group)
        if settings.cascade and not spec.window:
            key_bytes = spec.kv_heads * (spec.head_dim + spec.value_dim) * self.itemsize
            self.sharing_pays_from = -(-settings.cascade_bytes // key_bytes)
        self._scratch: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._cascade_scratch: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._processors = 0

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
            reasons.append("its results depend on the batch")
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
        cascade = None
        if meta.shared is not None and self.sharing_pays_from and first == 0:
            cascade = self._cascade(last, device)
            cascade.load(meta.shared)
        splits = split_count(
            (last - first) * self.spec.kv_heads,
            -(-longest // self._decode_keys(queries)),
            self._processors_of(device),
            min(self.settings.splits, MOST_SPLITS - (cascade.programs if cascade else 0)),
        )
        partial, sums = None, None
        if cascade is not None:
            partial, sums = self._scratch_with(cascade, last * splits, device)
        elif splits > 1:
            partial, sums = self._scratch_of(queries, device)
        return Decode(requests_of(meta, first, last), queries, splits, partial, sums, cascade)

    def _cascade(self, requests: int, device: torch.device) -> Cascade:
        blocks = self.cascade_blocks
        programs = cascade_programs(self.spec.kv_heads, self._processors_of(device))
        return Cascade(requests, blocks.rows // self.group, blocks.keys, programs, device)

    def share(self, plan: Parts, shared: SharedPrefixes) -> None:
        """See `AttentionBackend.share`."""
        decode = plan[0]
        assert isinstance(decode, Decode)
        assert decode.cascade is not None, "the plan was made with `shared`"
        decode.cascade.load(shared)

    def _plan_prefill(self, meta: AttentionMeta, counts: NDArray[np.int32], first: int) -> Prefill:
        tokens = self.prefill_blocks.rows // self.group
        host = torch.from_numpy(query_tiles(counts[first:], meta.host_context[first:], tokens))
        device = meta.context.device
        if device.type != "cpu":
            host = host.pin_memory()  # torch keeps pinned memory until the copy is done
        tiles = host.to(device, non_blocking=True)
        return Prefill(requests_of(meta, first, len(counts)), tiles)

    def _decode_keys(self, queries: int) -> int:
        return decode_blocks(self.itemsize, self.spec.head_dim, queries * self.group).keys

    def _processors_of(self, device: torch.device) -> int:
        if not self._processors:
            self._processors = 8  # triton's interpreter: as good as any
            if device.type != "cpu":
                facts = torch.cuda.get_device_properties(device)
                self._processors = facts.multi_processor_count
        return self._processors

    def _scratch_of(self, queries: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scratch that holds every split count of so many query tokens.

        Kept for good: graphs hold its address.
        """
        if queries not in self._scratch:
            rows = most_programs(self._processors_of(device)) * queries * self.group
            self._scratch[queries] = (
                torch.empty((rows, self.spec.head_dim), dtype=torch.float32, device=device),
                torch.empty(rows, dtype=torch.float32, device=device),
            )
        return self._scratch[queries]

    def _scratch_with(
        self, cascade: Cascade, splits: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scratch for so many splits of requests, and for a cascade's pieces behind them."""
        rows = power_of_two((splits + cascade.rows) * self.spec.heads)
        if rows not in self._cascade_scratch:
            self._cascade_scratch[rows] = (
                torch.empty((rows, self.spec.head_dim), dtype=torch.float32, device=device),
                torch.empty(rows, dtype=torch.float32, device=device),
            )
        return self._cascade_scratch[rows]

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
        if k is not None and v is not None and len(k):
            self._write(k, v, kv, meta)
        parts: Parts = meta.plan
        for part in parts:
            if isinstance(part, Decode):
                self._decode(layer, part, q, kv, out, lse)
            else:
                self._prefill(layer, part, q, kv, out, lse)

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """See `AttentionBackend.prepare`."""
        rope = layer.rope
        if not self.settings.fuse_prepare or not len(qkv):
            return None
        assert qkv.stride(1) == 1, "a row of the projection lies in one piece"
        dim, kv_heads = layer.head_dim, layer.kv_heads
        q = qkv.new_empty((len(qkv), layer.heads, dim))
        heads = min(power_of_two(kv_heads), max(1, PREPARE_ELEMENTS // dim))
        q_blocks, kv_blocks = -(-layer.heads // heads), -(-kv_heads // heads)
        prepare_kernel[(len(qkv), q_blocks + 2 * kv_blocks)](
            qkv, meta.positions, meta.write_page, meta.write_offset,
            None if rope is None else rope.cos, None if rope is None else rope.sin,
            layer.q_norm, layer.k_norm, q, kv["k"], kv["v"],
            qkv.stride(0), 0 if rope is None else len(rope.cos), layer.norm_eps,
            Q_HEADS=layer.heads, KV_HEADS=kv_heads, HEADS=heads,
            Q_BLOCKS=q_blocks, KV_BLOCKS=kv_blocks,
            ROTATED=0 if rope is None else 2 * rope.cos.shape[1],
            PAGE=self.spec.page_tokens, DIM=dim, num_warps=4,
        )  # fmt: skip
        return q

    def _write(
        self, k: torch.Tensor, v: torch.Tensor, kv: dict[str, torch.Tensor], meta: AttentionMeta
    ) -> None:
        tokens, kv_heads, dim = k.shape
        heads = min(power_of_two(kv_heads), max(1, WRITE_ELEMENTS // dim))
        write_kernel[(tokens, -(-kv_heads // heads))](
            k, v, kv["k"], kv["v"], meta.write_page, meta.write_offset,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            KV_HEADS=kv_heads, HEADS=heads, PAGE=self.spec.page_tokens, DIM=dim, num_warps=4,
        )  # fmt: skip

    def _decode(
        self,
        layer: AttentionLayer,
        part: Decode,
        q: torch.Tensor,
        kv: dict[str, torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        dim, kv_heads, group = layer.head_dim, layer.kv_heads, self.group
        blocks = decode_blocks(self.itemsize, dim, part.queries * group)
        requests, cascade = part.requests, part.cascade
        if cascade is not None:
            self._attend_prefixes(layer, part, cascade, q, kv)
        pieces = None if cascade is None else cascade.requests
        single = part.splits == 1 and cascade is None
        sinks = _sinks(layer, q.device)
        token_of_lse = 0 if lse is None else lse.stride(0)
        shape = {"QUERIES": part.queries, "GROUP": group, "KV_HEADS": kv_heads, "DIM": dim}
        ends = {"HAS_SINKS": sinks is not None, "HAS_LSE": lse is not None}
        ends["SHARED"] = cascade is not None
        count = len(requests.context)
        decode_kernel[(kv_heads, count, part.splits)](
            q, kv["k"], kv["v"], requests.table, requests.query_start, requests.context, sinks,
            out, lse, part.partial, part.sums, pieces,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1), token_of_lse,
            requests.table.stride(0), part.splits, _scale(layer), layer.soft_cap,
            SINGLE=single, PAGE=self.spec.page_tokens, ROWS=blocks.rows,
            KEYS=blocks.keys, WINDOW=layer.window, HAS_CAP=layer.soft_cap > 0, **shape, **ends,
            num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        if not single:
            piece = min(dim, 64)
            most = part.splits + (0 if cascade is None else cascade.programs)
            merge_kernel[(kv_heads * group * part.queries, count, dim // piece)](
                part.partial, part.sums, pieces, requests.query_start, sinks, out, lse,
                out.stride(0), out.stride(1), token_of_lse,
                part.splits, part.prefix_at(layer.heads),
                PART=piece, SPLITS=power_of_two(most), **shape, **ends, num_warps=4,
            )  # fmt: skip

    def _attend_prefixes(
        self,
        layer: AttentionLayer,
        part: Decode,
        cascade: Cascade,
        q: torch.Tensor,
        kv: dict[str, torch.Tensor],
    ) -> None:
        requests, blocks = part.requests, self.cascade_blocks
        cascade_kernel[(layer.kv_heads, cascade.programs)](
            q, kv["k"], kv["v"], requests.table, requests.query_start,
            cascade.members, cascade.items, cascade.runs, part.partial, part.sums,
            q.stride(0), q.stride(1), requests.table.stride(0), part.prefix_at(layer.heads),
            _scale(layer), layer.soft_cap,
            GROUP=self.group, KV_HEADS=layer.kv_heads, PAGE=self.spec.page_tokens,
            DIM=layer.head_dim, ROWS=blocks.rows, KEYS=blocks.keys, HAS_CAP=layer.soft_cap > 0,
            num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    def _prefill(
        self,
        layer: AttentionLayer,
        part: Prefill,
        q: torch.Tensor,
        kv: dict[str, torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        requests, blocks = part.requests, self.prefill_blocks
        sinks = _sinks(layer, q.device)
        prefill_kernel[(len(part.tiles), layer.kv_heads)](
            q, kv["k"], kv["v"], requests.table, requests.query_start, requests.context,
            part.tiles, sinks, out, lse,
            q.stride(0), q.stride(1), out.stride(0), out.stride(1),
            0 if lse is None else lse.stride(0), requests.table.stride(0),
            _scale(layer), layer.soft_cap,
            GROUP=self.group, KV_HEADS=layer.kv_heads, PAGE=self.spec.page_tokens,
            DIM=layer.head_dim, TOKENS=blocks.rows // self.group, ROWS=blocks.rows,
            KEYS=blocks.keys, WINDOW=layer.window, HAS_CAP=layer.soft_cap > 0,
            HAS_SINKS=sinks is not None, HAS_LSE=lse is not None,
            num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip


def _scale(layer: AttentionLayer) -> float:
    # a soft cap works on natural scores; without one the change of base is free here
    return layer.scale if layer.soft_cap else layer.scale * LOG2_E


def _sinks(layer: AttentionLayer, device: torch.device) -> torch.Tensor | None:
    return None if layer.sinks is None else layer.sinks.to(device, torch.float32)
