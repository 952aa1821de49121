"""KVQuant: in which form keys and values lie in pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .attention import AttentionSpec


@dataclass(frozen=True, slots=True)
class KVField:
    """One tensor of a layer's pages.

    Attributes:
        name: `k`, `v`, `k_scale`, ...
        shape: Of one page; a leading page dimension is added.
        dtype: Torch's name of it, such as `bfloat16`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one layer's page lies in memory.

    Attributes:
        order: `tokens_first` is [P, G, D] and `heads_first` is [G, P, D] within a page.
        fields: Tensors of a page, in memory order.
    """

    order: str
    fields: tuple[KVField, ...]


class KVQuant(ABC):
    """Quantise on write, dequantise on read. Constructed as `KVQuant(settings)`. Stateless.

    Fused attention kernels may read and write the fields themselves; they know the layout by
    `name`. The methods here are the reference that such kernels are tested against.

    Attributes:
        name: Of the storage form, for kernels that fuse it.
    """

    name: str

    @abstractmethod
    def layout(self, spec: AttentionSpec, order: str) -> KVLayout:
        """Return the fields of a page of `spec.page_tokens` tokens in the given order."""

    @abstractmethod
    def write(
        self,
        kv: dict[str, torch.Tensor],
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        """Store keys and values.

        Args:
            kv: Fields by name, each [N, *shape].
            pages: int64 [T] page of each token.
            offsets: int64 [T] place of each token in its page.
            k: [T, G, D].
            v: [T, G, Dv].
            order: Of the layout.
        """

    @abstractmethod
    def read(
        self, kv: dict[str, torch.Tensor], pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [..., G, P, D] and values [..., G, P, Dv] of `pages`, int64 of any shape.

        The order of the result does not depend on `order`.
        """
