"""Attention whose result for a token depends on the token's own sequence and on nothing else.

Source: He, "Defeating Nondeterminism in LLM Inference", Thinking Machines, 2025. Every token,
decoded or part of a prompt, meets its keys in the same kernel, in tiles that begin at multiples of
the same number of keys, one after the other: no splits, whose number would follow the batch, and no
shared prefixes. What else is in a token's tile of queries adds whole tiles of keys in which it sees
nothing, and those change no bit: its sums are multiplied by one, and zeros added. Products and sums
are rounded one by one, for a compiler that joins them does so differently with a mask and without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.attention import AttentionBackend, GraphLevel

from .calls import Calls
from .components import TritonSettings
from .forms import require_known_form
from .launch import Blocks, prefill_blocks, query_tiles
from .parts import Prefill, prefill_of
from .triton import TritonAttention

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import InvariantSettings

LEAST_ROWS = 64  # of Hopper's matrix instruction, which four warps share


@dataclass(slots=True)
class Part:
    """A run of requests, and the calls that its layers make."""

    calls: Calls
    tiles: Prefill


class InvariantAttention(AttentionBackend):
    """The tile kernel of `triton` for every token, over the same pages."""

    graph_level = GraphLevel.UNIFORM
    side_by_side = True

    def __init__(self, settings: InvariantSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        require_known_form(kv_quant, "invariant")
        self.settings = settings
        self.spec = spec
        self.tiled = TritonAttention(TritonSettings(cascade=False), spec, kv_quant)
        self._calls: tuple[Calls, Calls] | None = None

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """What `triton` does, deterministic or not."""
        return TritonAttention.supports(replace(spec, deterministic=False), facts)

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`. The pages of `triton`."""
        return self.tiled.kv_layout()

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> list[Part]:
        """Cut requests into tiles, those with a single token apart. Lengths stay on the device."""
        counts = np.diff(meta.host_query_start)
        if self._calls is None:
            self._calls = self._calls_on(meta.context.device)
        one, many = self._calls
        single = meta.decode_requests
        runs = ((one, 0, single), (many, single, len(counts)))
        return [
            Part(calls, self._tiles(calls, meta, counts, first, last))
            for calls, first, last in runs
            if first < last
        ]

    def _calls_on(self, device: torch.device) -> tuple[Calls, Calls]:
        """Return calls for single tokens and for many."""
        spec = self.spec
        one, many = invariant_blocks(
            self.tiled.itemsize,
            spec.head_dim,
            self.tiled.group,
            any_rows=_is_hopper(device) and spec.dtype == "bfloat16",
        )
        return Calls(spec, one, one), Calls(spec, many, many)

    def _tiles(
        self, calls: Calls, meta: AttentionMeta, counts: NDArray[np.int32], first: int, last: int
    ) -> Prefill:
        tokens = calls.prefill_blocks.rows // self.tiled.group
        tiles = query_tiles(counts[first:last], meta.host_context[first:last], tokens)
        return prefill_of(meta, first, last, tiles)

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
        self.tiled.attend(layer, [], q, k, v, kv, meta, out, lse)  # writes what is not in pages
        parts: list[Part] = meta.plan
        for part in parts:
            part.calls.prefill(layer, part.tiles, q, kv, out, lse)

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """See `AttentionBackend.prepare`."""
        return self.tiled.prepare(layer, qkv, kv, meta)


def invariant_blocks(
    itemsize: int, head_dim: int, group: int, *, any_rows: bool
) -> tuple[Blocks, Blocks]:
    """Return blocks for single tokens and for many, between which a row's bits are the same.

    Args:
        itemsize: Bytes of an element.
        head_dim: D.
        group: Query heads of a kv head.
        any_rows: Each 64 rows are computed by their own warps in the same way, however many there
            are. It is known of Hopper in bfloat16; elsewhere both are the same.
    """
    many = replace(prefill_blocks(itemsize, head_dim, group), fuses=False)
    if any_rows and itemsize == 2 and group <= LEAST_ROWS:
        return replace(many, rows=LEAST_ROWS, warps=4), many
    return many, many


def _is_hopper(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)
