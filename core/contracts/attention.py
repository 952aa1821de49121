"""AttentionBackend: how queries meet the keys and values in pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from .kv_quant import KVLayout

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ..facts import DeviceFacts

__all__ = [
    "AttentionBackend",
    "AttentionLayer",
    "AttentionMeta",
    "AttentionSpec",
    "GraphLevel",
    "KVLayout",
    "Rope",
    "SharedPrefixes",
]


class GraphLevel(IntEnum):
    """For which batches a backend can be recorded in a graph. The weakest of a recipe wins."""

    NEVER = 0
    SINGLE_TOKEN = 1
    UNIFORM = 2
    ALWAYS = 3


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What the layers of one KV group ask of a backend.

    Attributes:
        heads: H.
        kv_heads: G; divides H.
        head_dim: D, of queries and keys.
        value_dim: Of values and outputs; may differ.
        dtype: Of activations, torch's name.
        page_tokens: P, of a kernel page.
        window: Tokens that a query sees, itself included; 0 is all.
        sinks: Layers have a learned logit per head that takes part in the softmax.
        soft_cap: Scores become `cap * tanh(score / cap)`; 0 is off.
        causal: A query sees no later key. Without it a text is computed in one step: `context` is
            always 0.
        max_context: Longest sequence.
        deterministic: The result for a token must not depend on the rest of the batch.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: str
    page_tokens: int
    window: int = 0
    sinks: bool = False
    soft_cap: float = 0.0
    causal: bool = True
    max_context: int = 0
    deterministic: bool = False


class Rope:
    """Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864), shared by layers.

    Attributes:
        cos: [positions, rotated / 2], float32.
        sin: The same shape. Halves are rotated as (first half, second half) of the head.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.cos = cos
        self.sin = sin
        self._at: tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] | None = None

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines of each rotated dimension.

        All layers of a step ask with the same tensor, so the last answer is kept. Who writes
        other positions into that tensor calls `forget` first.

        Args:
            positions: int64 [T].

        Returns:
            [T, 1, rotated] each; sines are negative in the first half, as `x * cos +
            swap(x) * sin` wants them.
        """
        if self._at is None or self._at[0] is not positions:
            cos, sin = self.cos[positions], self.sin[positions]
            doubled = cos.repeat(1, 2).unsqueeze(1)
            signed = sin.repeat(1, 2).unsqueeze(1)
            signed[..., : sin.shape[-1]].neg_()
            self._at = (positions, (doubled, signed))
        return self._at[1]

    def forget(self) -> None:
        """Drop the kept answer."""
        self._at = None


@dataclass(slots=True)
class AttentionLayer:
    """One attention layer of the model.

    Attributes:
        index: Layer of the model.
        group: KV group.
        heads: H on this rank.
        kv_heads: G on this rank.
        head_dim: D.
        value_dim: Of values.
        scale: Multiplies scores.
        window: As in the spec.
        soft_cap: As in the spec.
        sinks: [H] float32, or None.
        rope: Or None for layers without positions.
        q_norm: [D] weight of the RMS norm on each query head, or None.
        k_norm: The same for keys.
        norm_eps: Of these norms.
    """

    index: int
    group: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None
    rope: Rope | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Which decoding requests begin with the same pages. Numpy arrays; S groups.

    Every member has its group's whole prefix in context, and the first columns of all members'
    page tables are equal. A request is in one group at most.

    Attributes:
        group: int32 [R] group of each of a step's leading requests, -1 for none; R is at most
            `decode_requests`.
        tokens: int32 [S] tokens of each group's prefix: whole pages.
    """

    group: NDArray[np.int32]
    tokens: NDArray[np.int32]


@dataclass(slots=True)
class AttentionMeta:
    """One KV group's view of a step. Tensors are on the device; `host_*` are numpy.

    Attributes:
        decode_requests: Leading requests with a single query token.
        query_start: int64 [B + 1].
        context: int64 [B] exact tokens in pages before this step.
        positions: int64 [T] of each token, for rotary embedding. Masks and windows go by its place
            in the sequence instead: `context`, and its number among the request's tokens.
        request: int64 [T] which request each token is of.
        page_table: int32 [B, pages] padded with the null page.
        write_page: int64 [T] where each token's keys and values go; the null page for padding.
        write_offset: int64 [T] place in that page.
        host_query_start: [B + 1].
        host_context: [B] upper bound of `context`, exact without speculation.
        shared: Who shares what, for backends that ask for it; None if nobody does.
        plan: What `plan` returned, for each slice.
    """

    decode_requests: int
    query_start: torch.Tensor
    context: torch.Tensor
    positions: torch.Tensor
    request: torch.Tensor
    page_table: torch.Tensor
    write_page: torch.Tensor
    write_offset: torch.Tensor
    host_query_start: NDArray[np.int32]
    host_context: NDArray[np.int32]
    shared: SharedPrefixes | None = None
    plan: Any = field(default=None)


class AttentionBackend(ABC):
    """Attends over pages. Constructed as `Backend(settings, spec, kv_quant)`, one for each group.

    `plan` is called once a step and group, `forward` once a layer. All on the current stream.

    Attributes:
        graph_level: See `GraphLevel`.
        needs_exact_host_lengths: `plan` reads `host_context` as exact; such a backend does not run
            with speculation.
        needs_zeroed_pages: Pages must be zeroed when they change hands, because unwritten slots
            are read. Without it a backend must be correct with NaN in every unwritten slot.
        sharing_pays_from: The fewest tokens, over all requests, that need not be read again for
            `AttentionMeta.shared` to be worth filling in; 0 says that this backend does not look
            at it. To ignore it is always correct.
        side_by_side: Several plans may be in use at once, and `forward` may run with plans that
            were made in different streams at the same time. Without it, nano-batches run as one.
    """

    graph_level: GraphLevel = GraphLevel.NEVER
    needs_exact_host_lengths: bool = False
    needs_zeroed_pages: bool = False
    sharing_pays_from: int = 0
    side_by_side: bool = False

    @staticmethod
    @abstractmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """Return every reason why this backend cannot serve `spec` on such a device, in words."""

    @abstractmethod
    def kv_layout(self) -> KVLayout:
        """Return the layout of a page of one layer. Both backends of a recipe must agree."""

    def warm_up(self, device: str, step_tokens: int) -> None:  # noqa: B027 - nothing by default
        """Make what would otherwise be made inside a step, such as the plans of a library.

        Called once, before the first step, in the thread that runs all steps.

        Args:
            device: The `torch.device` name.
            step_tokens: Most tokens of a step.
        """

    @abstractmethod
    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> Any:  # noqa: ANN401
        """Prepare what all layers share; the result becomes `meta.plan`.

        With `capture` the batch is a placeholder of the largest size: split counts and buffer
        sizes chosen now stay valid for every replay. If it has `shared`, in which nobody shares
        anything yet, replays of this recording may share; `share` says what.
        """

    def share(self, plan: Any, shared: SharedPrefixes) -> None:  # noqa: ANN401, B027
        """Tell a captured plan who shares what, before a replay in which that is new.

        Called only where `sharing_pays_from` is above 0.

        Args:
            plan: What `plan(capture=True)` returned for a batch with `shared`.
            shared: Of the replay; its requests may be fewer than those of the recording.
        """

    @abstractmethod
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
        """Write keys and values into pages, then attend.

        Args:
            layer: The layer.
            q: [T, H, D], positions applied.
            k: [T, G, D], or None when `prepare` stored them.
            v: [T, G, Dv], or None.
            kv: The layer's fields, each [N, *shape].
            meta: Of the layer's group.
            out: [T, H, Dv]; the result is written here.
            lse: float32 [T, H] for the log of the sum of exponentials, or None.
        """

    def prepare(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
    ) -> torch.Tensor | None:
        """Fuse QK-norm, rotary embedding and the write of keys and values.

        Args:
            layer: With norms and rope.
            qkv: [T, (H + G) * D + G * Dv], as the model projected it.
            kv: The layer's fields.
            meta: Of the layer's group.

        Returns:
            q [T, H, D], after which `forward` gets k and v as None; or None when this backend does
            not fuse, which is the default.
        """
        return None
