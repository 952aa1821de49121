"""Ops: named operations with plain references; any plugin may offer faster versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..facts import DeviceFacts
    from .attention import AttentionLayer

Activation = Literal["silu", "gelu"]
"""Of a gate; `gelu` is the approximation with tanh."""


class Ops(Protocol):
    """The table that models and samplers call. `camshaft.ops` holds the references.

    Versions of providers give a row the same bits in any batch, so that deterministic engines can
    use them. Only in `linear`, `norm_linear` and `norm_gated_linear`, which these avoid, may a row
    depend in its last bits on how many others there are.
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise rows of x [T, C] (Zhang and Sennrich, 2019, arXiv 1910.07467)."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm of the sum, the sum); `residual` may be overwritten with the sum.

        Here and in the linears with a norm the sum keeps the dtype of `residual`, which may be
        wider than x's, and is rounded to it before it is normed. The norm is in x's dtype.
        """
        ...

    def rope_qk_norm(
        self, qkv: torch.Tensor, positions: torch.Tensor, layer: AttentionLayer
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split qkv [T, (H + G) * D + G * Dv] into q [T, H, D], k, v; norm and rotate q and k."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up of [T, 2 * I] (Shazeer, GLU Variants, 2020): [T, I]."""
        ...

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return gelu_tanh(gate) * up of [T, 2 * I]: [T, I]."""
        ...

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return x [T, K] times the transposed `weight` [N, K] plus `bias` [N]: [T, N].

        The result is of `dtype`, by default x's; a wider one may spare it the rounding to x's.
        Here and in the three below, weights and biases may be read before work that was launched
        earlier is done.
        """
        ...

    def row_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return what `linear` does, each row with the same bits whatever other rows there are."""
        ...

    def norm_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add, norm with the weight `norm` [K], project: return ([T, N], the sum [T, K]).

        `residual` may be overwritten with the sum. Without one the sum is x.
        """
        ...

    def norm_gated_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the same with gates and ups side by side in N = 2 * I, activate: ([T, I], the sum)."""
        ...


class OpImplementation(NamedTuple):
    """A version of one operation.

    Attributes:
        name: A method of `Ops`.
        function: With the same arguments and results.
        supports: Called with the device's facts and the dtype's name; returns reasons against.
    """

    name: str
    function: Callable[..., object]
    supports: Callable[[DeviceFacts, str], list[str]]


class OpsProvider(ABC):
    """Constructed as `Provider(settings)`. A recipe lists providers; a later one wins."""

    @abstractmethod
    def implementations(self) -> list[OpImplementation]:
        """Return what it offers."""
