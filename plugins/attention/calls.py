"""The kernels of `triton`, called for one layer: everything that costs the host time 28 times.

What all layers of a step share is in the plan; here is what differs, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from camshaft.kernel_launch import KernelLaunch, launcher

from .kernels.cascade import cascade_kernel
from .kernels.decode import decode_kernel, merge_kernel
from .kernels.newest import newest_kernel
from .kernels.prefill import prefill_kernel
from .kernels.prepare import prepare_kernel
from .kernels.write import write_kernel
from .launch import Blocks, power_of_two
from .parts import DecodeLaunches

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec

    from .parts import Decode, Prefill

LOG2_E = 1.4426950408889634
MERGE_ELEMENTS = 64  # of a head, in one program of the merge kernel
WRITE_ELEMENTS = 2048  # of one program of the write kernel
PREPARE_ELEMENTS = 1024  # of one program of the prepare kernel

Fields = dict[str, torch.Tensor]


class Prepared(NamedTuple):
    """What became of a projection.

    Attributes:
        q: [T, H, D].
        k: [T, G, D], a copy of what was written to the pages, if it was asked for.
        v: Likewise.
    """

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None


class Calls:
    """Calls for the layers of a KV group.

    Attributes:
        early: Launch before the kernel before is done; set before the first call.
        prefill_blocks: Of the tile kernel.
    """

    def __init__(self, spec: AttentionSpec, prefill: Blocks, cascade: Blocks) -> None:
        """Remember sizes.

        Args:
            spec: Of the layers.
            prefill: Blocks of the tile kernel.
            cascade: Blocks of the cascade kernel.
        """
        self.spec = spec
        self.early = False
        self._group = spec.heads // spec.kv_heads
        self.prefill_blocks, self._cascade = prefill, cascade
        self._preparing: dict[int, KernelLaunch] = {}

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: Fields,
        meta: AttentionMeta,
        *,
        copy: bool,
    ) -> Prepared:
        """Norm, rotate and store; keep a copy of keys and values that needs no pages, if asked."""
        tokens, k, v = qkv.shape[0], None, None
        q = qkv.new_empty((tokens, layer.heads, layer.head_dim))
        if copy:
            k, v = qkv.new_empty((2, tokens, layer.kv_heads, layer.head_dim))
        cos, sin, angles = _angles(layer)
        rotated = _rotated(layer)
        if rotated not in self._preparing:
            self._preparing[rotated] = self._prepare_launch(rotated)
        each = self._prepared_heads
        programs = -(-layer.heads // each) + 2 * -(-layer.kv_heads // each)
        self._preparing[rotated](
            (tokens, programs, 1),
            qkv, meta.positions, meta.write_page, meta.write_offset, cos, sin, layer.q_norm,
            layer.k_norm, q, *page_fields(kv), k, v, qkv.stride(0), angles, layer.norm_eps,
        )  # fmt: skip
        return Prepared(q, k, v)

    @property
    def _prepared_heads(self) -> int:
        """Heads of one program of the prepare kernel."""
        return min(power_of_two(self.spec.kv_heads), max(1, PREPARE_ELEMENTS // self.spec.head_dim))

    def _prepare_launch(self, rotated: int) -> KernelLaunch:
        spec, each = self.spec, self._prepared_heads
        return launcher(
            prepare_kernel, Q_HEADS=spec.heads, KV_HEADS=spec.kv_heads, HEADS=each,
            Q_BLOCKS=-(-spec.heads // each), KV_BLOCKS=-(-spec.kv_heads // each),
            ROTATED=rotated, PAGE=spec.page_tokens, DIM=spec.head_dim, num_warps=2,
            **self._early(),
        )  # fmt: skip

    def write(self, k: torch.Tensor, v: torch.Tensor, kv: Fields, meta: AttentionMeta) -> None:
        """Copy keys and values [T, G, D] to their pages."""
        tokens, kv_heads, dim = k.shape
        heads = min(power_of_two(kv_heads), max(1, WRITE_ELEMENTS // dim))
        launch = launcher(
            write_kernel, KV_HEADS=kv_heads, HEADS=heads, PAGE=self.spec.page_tokens, DIM=dim,
            num_warps=4, **self._early(),
        )  # fmt: skip
        launch(
            (tokens, -(-kv_heads // heads), 1),
            k, v, *page_fields(kv), meta.write_page, meta.write_offset,
            *k.stride()[:2], *v.stride()[:2],
        )  # fmt: skip

    def decode(
        self,
        layer: AttentionLayer,
        part: Decode,
        q: torch.Tensor,
        kv: Fields,
        meta: AttentionMeta,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Attend with few query tokens of each request."""
        requests, sinks, scale = part.requests, _sinks(layer, q), _scale(layer)
        projected, part.projected = part.projected, None
        rotated = -1 if projected is None else _rotated(layer)
        features = (layer.window, layer.soft_cap > 0, sinks is not None, lse is not None, rotated)
        if features not in part.launches:
            part.launches[features] = self._decode_launches(part, *features)
        launches, cascade, pieces = part.launches[features], part.cascade, None
        q_token, q_head, _ = q.stride()
        out_token, out_head, _ = out.stride()
        lse_token = 0 if lse is None else lse.stride(0)
        prefix_at = part.prefix_at(layer.heads)
        pages = page_fields(kv)
        if cascade is not None and launches.prefixes is not None:
            pieces = cascade.requests
            launches.prefixes(
                (layer.kv_heads, cascade.programs, 1),
                q, *pages, requests.table, requests.query_start, cascade.members,
                cascade.items, cascade.runs, part.partial, part.sums, q_token, q_head,
                requests.table_row, prefix_at, scale, layer.soft_cap,
            )  # fmt: skip
        grid = (layer.kv_heads, requests.count, part.splits)
        result = (out, lse, part.partial, part.sums)
        counters = part.counters
        strides = (out_token, out_head, lse_token, requests.table_row, part.splits)
        if projected is None:
            launches.attend(
                grid, q, *pages, requests.table, requests.query_start, requests.context,
                sinks, *result, pieces, counters, q_token, q_head, *strides, prefix_at, scale,
                layer.soft_cap,
            )  # fmt: skip
        else:
            cos, sin, angles = _angles(layer)
            launches.attend(
                grid, projected, meta.positions, meta.write_page, meta.write_offset, cos, sin,
                layer.q_norm, layer.k_norm, *pages, requests.table, requests.context,
                sinks, *result, counters, projected.stride(0), angles, layer.norm_eps, *strides,
                scale, layer.soft_cap,
            )  # fmt: skip
        if launches.merge is not None:
            launches.merge(
                (layer.heads * part.queries, requests.count, -(-layer.head_dim // MERGE_ELEMENTS)),
                part.partial, part.sums, pieces, requests.query_start, requests.context, sinks,
                out, lse, out_token, out_head, lse_token, part.splits, prefix_at,
            )  # fmt: skip

    def _decode_launches(
        self,
        part: Decode,
        window: int,
        has_cap: bool,
        has_sinks: bool,
        has_lse: bool,
        rotated: int,
    ) -> DecodeLaunches:
        spec, blocks, cascade = self.spec, part.blocks, part.cascade
        single = part.splits == 1 and (cascade is None or part.merges)
        last = part.merges and not single
        sizes = {"GROUP": self._group, "KV_HEADS": spec.kv_heads, "DIM": spec.head_dim}
        sizes |= self._early()
        has = {"WINDOW": window, "HAS_SINKS": has_sinks, "HAS_LSE": has_lse, "KEYS": blocks.keys}
        merged = {"QUERIES": part.queries, "SHARED": cascade is not None, **has, **sizes}
        paged = {"PAGE": spec.page_tokens, "HAS_CAP": has_cap}
        own = {
            "SINGLE": single, "LAST": last, "ROWS": blocks.rows, "num_warps": blocks.warps,
            "num_stages": blocks.stages, **paged,
        }  # fmt: skip
        if rotated < 0:
            launches = DecodeLaunches(launcher(decode_kernel, **own, **merged))
        else:
            own |= {"ROTATED": rotated, **has, **sizes}
            launches = DecodeLaunches(launcher(newest_kernel, **own))
        if not single and not last:
            most = power_of_two(part.splits + (0 if cascade is None else cascade.programs))
            size = min(spec.head_dim, MERGE_ELEMENTS)
            launches.merge = launcher(merge_kernel, PART=size, SPLITS=most, num_warps=4, **merged)
        if cascade is not None:
            blocks = self._cascade
            launches.prefixes = launcher(
                cascade_kernel, ROWS=blocks.rows, KEYS=blocks.keys, num_warps=blocks.warps,
                num_stages=blocks.stages, **paged, **sizes,
            )  # fmt: skip
        return launches

    def prefill(
        self,
        layer: AttentionLayer,
        part: Prefill,
        q: torch.Tensor,
        kv: Fields,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Attend with many query tokens of each request."""
        requests, sinks = part.requests, _sinks(layer, q)
        features = (layer.window, layer.soft_cap > 0, sinks is not None, lse is not None, -1)
        if features not in part.launches:
            part.launches[features] = self._prefill_launch(*features[:4])
        part.launches[features](
            (part.tiles.shape[0], layer.kv_heads, 1),
            q, *page_fields(kv), requests.table, requests.query_start, requests.context,
            part.tiles, sinks, out, lse, *q.stride()[:2], *out.stride()[:2],
            0 if lse is None else lse.stride(0), requests.table_row, _scale(layer), layer.soft_cap,
        )  # fmt: skip

    def _prefill_launch(
        self, window: int, has_cap: bool, has_sinks: bool, has_lse: bool
    ) -> KernelLaunch:
        spec, blocks = self.spec, self.prefill_blocks
        return launcher(
            prefill_kernel, GROUP=self._group, KV_HEADS=spec.kv_heads, PAGE=spec.page_tokens,
            DIM=spec.head_dim, TOKENS=blocks.rows // self._group, ROWS=blocks.rows,
            KEYS=blocks.keys, WINDOW=window, HAS_CAP=has_cap, HAS_SINKS=has_sinks,
            HAS_LSE=has_lse, num_warps=blocks.warps, num_stages=blocks.stages,
            enable_fp_fusion=blocks.fuses,
        )  # fmt: skip

    def _early(self) -> dict[str, Any]:
        """Return the constant of kernels that can start early, and the option that lets them."""
        return {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}


def page_fields(kv: Fields) -> tuple[torch.Tensor | None, ...]:
    """Return keys, values and the scales of either, None where they are plain numbers."""
    return kv["k"], kv["v"], kv.get("k_scale"), kv.get("v_scale")


def _scale(layer: AttentionLayer) -> float:
    # a soft cap works on natural scores; without one the change of base is free here
    return layer.scale if layer.soft_cap else layer.scale * LOG2_E


def _rotated(layer: AttentionLayer) -> int:
    return 0 if layer.rope is None else 2 * layer.rope.cos.shape[1]


def _angles(layer: AttentionLayer) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
    rope = layer.rope
    return (None, None, 0) if rope is None else (rope.cos, rope.sin, rope.cos.shape[0])


def _sinks(layer: AttentionLayer, q: torch.Tensor) -> torch.Tensor | None:
    return None if layer.sinks is None else layer.sinks.to(q.device, torch.float32)
