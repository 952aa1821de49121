"""Speculator: drafts tokens that the next step verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .attention import AttentionSpec
    from .sampling import RowContext, Sampled


class Speculator(ABC):
    """Constructed as `Speculator(settings, draft_tokens, slots, device)`.

    Runs on the device after `sample`, for the requests of the step. Verification is the sampler's.

    Attributes:
        hidden_layers: Layers whose hidden states it wants, or empty.
        needs_host_tokens: It drafts on the host, so its requests delay their sample launch.
    """

    hidden_layers: tuple[int, ...] = ()
    needs_host_tokens: bool = False

    @abstractmethod
    def kv_spec(self) -> AttentionSpec | None:
        """Return what its own KV group needs, or None without one."""

    @abstractmethod
    def propose(
        self, rows: RowContext, sampled: Sampled, hidden: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        """Return int64 drafts [S, K], -1 where it has none. Any id of the vocabulary is legal."""

    @abstractmethod
    def verify(self, rows: RowContext, sampled: Sampled) -> None:
        """Learn which drafts were accepted."""
