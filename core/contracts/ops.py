"""Ops: named operations with plain references; any plugin may offer faster versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..facts import DeviceFacts
    from .attention import AttentionLayer


class Ops(Protocol):
    """The table that models and samplers call. `camshaft.ops` holds the references."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise rows of x [T, C] (Zhang and Sennrich, 2019, arXiv 1910.07467)."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm of the sum, the sum); `residual` may be overwritten with the sum."""
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
