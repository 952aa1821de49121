"""Attention through torch's flex_attention: a Python function changes the scores.

Made for trying ideas: what a paper writes as a change to the score of one query and one key is one
method here, `FlexAttention.score_mod`, and everything else stays as it is. Subclass it, and
register the class like any other; docs/plugins.md has an example.

Pages are gathered first, so that keys lie in the order of their positions. Requests with one token
attend in one call, the others one by one. On accelerators the function is compiled into a kernel;
on CPUs torch runs it as it stands, since its compiled form there returns no sums.

Source: Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention
Kernels", arXiv 2412.05496.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

from camshaft.contracts.attention import AttentionBackend
from camshaft.facts import Capability

from .flex_kernel import Kernel, compiled, plain
from .pages import ORDER, pages_of

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import FlexSettings

BLOCK = 128  # queries and keys of one entry of a block mask, torch's own choice
LEAST_KEYS = 2 * BLOCK  # dynamo compiles anew for dimensions of 1: never one block of keys alone

ScoreMod = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]
"""(score, request, head, query, key) to score; `query` and `key` are positions in the sequence."""


@dataclass(slots=True)
class Part:
    """Requests that attend in one call.

    Attributes:
        tokens: Their tokens in the step, as many of each.
        context: int64 [B] tokens before them.
        reads: Where their pages are.
        unseen: bool [B, 1, keys, 1], for keys that no query of the request sees.
        mask: Which keys each query sees.
    """

    tokens: slice
    context: torch.Tensor
    reads: Any
    unseen: torch.Tensor
    mask: BlockMask


@dataclass(slots=True)
class FlexPlan:
    """What all layers of a group share."""

    writes: Any
    parts: list[Part]


class FlexAttention(AttentionBackend):
    """Gathers pages, then calls `flex_attention` with `score_mod`."""

    side_by_side = True

    def __init__(self, settings: FlexSettings, spec: AttentionSpec, kv_quant: KVQuant) -> None:
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.pages = pages_of(kv_quant, spec.kv_heads, spec.page_tokens)
        self.unfused: Kernel = plain
        self._fused: Kernel | None = None

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Causal attention; on accelerators where triton runs."""
        reasons = []
        if facts.kind != "cpu" and Capability.TRITON not in facts.capabilities:
            reasons.append(f"torch compiles it with triton, which does not run on {facts.name}")
        if facts.kind != "cpu" and min(spec.head_dim, spec.value_dim) < 16:
            reasons.append("torch compiles it for heads of 16 elements or more")
        if not spec.causal:
            reasons.append("it is causal only")
        if spec.deterministic:
            reasons.append("its results depend on the batch")
        return reasons

    def score_mod(self, layer: AttentionLayer, device: torch.device) -> ScoreMod | None:
        """Return what changes the scores of a layer; here its soft cap. Meant to be overridden.

        Args:
            layer: The layer.
            device: Where the function runs. Numbers that it uses should be tensors there: torch
                takes plain floats as inputs on the CPU, out of reach for a kernel.

        Returns:
            A function of one scaled score and int64 scalars, or None to change nothing. It may
            return minus infinity to hide a key, but cannot show what lies outside the window.
        """
        if not layer.soft_cap:
            return None
        cap = torch.full((), layer.soft_cap, device=device)

        def mod(
            score: torch.Tensor,
            request: torch.Tensor,
            head: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor,
        ) -> torch.Tensor:
            return cap * torch.tanh(score / cap)

        return mod

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> FlexPlan:
        """Build masks and page lists once for all layers."""
        single, starts = meta.decode_requests, meta.host_query_start.tolist()
        parts = [self._part(meta, 0, single, slice(0, single))] if single else []
        parts += [
            self._part(meta, at, at + 1, slice(starts[at], starts[at + 1]))
            for at in range(single, len(meta.host_context))
        ]
        return FlexPlan(self.pages.writes(meta), parts)

    def _part(self, meta: AttentionMeta, first: int, last: int, tokens: slice) -> Part:
        page, context = self.spec.page_tokens, meta.context[first:last].long()
        queries = (tokens.stop - tokens.start) // (last - first)
        wanted = max(LEAST_KEYS, int(meta.host_context[first:last].max()) + queries)
        step = lcm(BLOCK, page)  # whole pages and whole blocks
        keys = -(-wanted // step) * step
        table = meta.page_table[first:last, : keys // page].long()
        table = pad(table, (0, keys // page - table.shape[1]))  # with the null page
        place = torch.arange(keys, device=context.device)
        unseen = place >= context[:, None] + queries
        if self.spec.window:
            unseen |= place <= context[:, None] - self.spec.window
        return Part(
            tokens,
            context,
            self.pages.reads(table),
            unseen[:, None, :, None],
            block_mask(context, queries, keys, self.spec.window),
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
        plan: FlexPlan = meta.plan
        if k is not None and v is not None:
            self.pages.write(kv, plan.writes, k, v)
        mod = self.score_mod(layer, q.device)
        kernel = self._kernel(q.device)
        for part in plan.parts:
            keys, values = self.pages.read(kv, part.reads, q.dtype)
            result, sums = kernel(
                q[part.tokens].unflatten(0, (len(part.context), -1)).transpose(1, 2).contiguous(),
                keys,
                values.masked_fill(part.unseen, 0),  # a weight of 0 does not hide a NaN
                None if mod is None else in_sequence(mod, part.context),
                part.mask,
                layer.scale,
            )
            if layer.sinks is not None:
                result, sums = with_sinks(result, sums, layer.sinks)
            out[part.tokens] = result.transpose(1, 2).flatten(0, 1)
            if lse is not None:
                lse[part.tokens] = sums.transpose(1, 2).flatten(0, 1)

    def _kernel(self, device: torch.device) -> Kernel:
        if device.type == "cpu" or not self.settings.fused:
            return self.unfused
        if self._fused is None:
            self._fused = compiled("inductor")
        return self._fused


def block_mask(context: torch.Tensor, queries: int, keys: int, window: int) -> BlockMask:
    """Return which keys each query sees.

    Args:
        context: int64 [B] tokens before the queries.
        queries: Query tokens of each request.
        keys: Keys of each request, whole blocks; the last ones may be unwritten.
        window: As in `AttentionSpec`.
    """
    device = context.device
    # a tensor, since dynamo takes plain numbers of a closure as further dynamic sizes
    reach = torch.full((), window or keys, device=device)

    def seen(
        request: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        place = context[request] + query
        return (key <= place) & (key > place - reach)

    first = context[:, None] + torch.arange(0, queries, BLOCK, device=device)
    last = torch.minimum(first + BLOCK, context[:, None] + queries) - 1
    low = (first - reach + 1).clamp(min=0) // BLOCK
    count = keys // BLOCK
    # every block once; those from low on come first, and only the first few are read
    order = (low[..., None] + torch.arange(count, device=device)) % count
    return BlockMask.from_kv_blocks(
        (last // BLOCK - low + 1).int()[:, None],
        order.int()[:, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(queries, keys),
        compute_q_blocks=False,  # only a backward pass reads them
    )


def in_sequence(mod: ScoreMod, context: torch.Tensor) -> ScoreMod:
    """Return `mod` as torch wants it: with the query counted within the step."""

    def placed(
        score: torch.Tensor,
        request: torch.Tensor,
        head: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
    ) -> torch.Tensor:
        return mod(score, request, head, context[request] + query, key)

    return placed


def with_sinks(
    result: torch.Tensor, sums: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let a logit per head [H], which has no value, take its share.

    Args:
        result: [B, H, n, Dv].
        sums: float32 [B, H, n] log of the sums of exponentials.
        sinks: [H].
    """
    total = torch.logaddexp(sums, sinks.to(sums)[:, None])
    return result * (sums - total).exp()[..., None].to(result.dtype), total
