"""What the backends of this folder share: writing tokens into pages, reading whole sequences.

Pages are laid out heads first: [N, G, P, D]. Everything that depends on the step and not on the
layer is computed once, by `writes` and `reads`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionMeta
    from camshaft.contracts.kv_quant import KVQuant

ORDER = "heads_first"

Fields = dict[str, torch.Tensor]


class Pages(Protocol):
    """Access to one group's pages in their stored form.

    Attributes:
        is_exact: What is read is what was written. Where it is not, a step's own keys and values
            are read back as well, so that chunks and cached prefixes change no answer.
    """

    is_exact: bool

    def writes(self, meta: AttentionMeta) -> Any:  # noqa: ANN401
        """Prepare where the tokens of a step go."""
        ...

    def write(self, kv: Fields, at: Any, k: torch.Tensor, v: torch.Tensor) -> None:  # noqa: ANN401
        """Store keys [T, G, D] and values [T, G, Dv] of a layer."""
        ...

    def reads(self, table: torch.Tensor) -> Any:  # noqa: ANN401
        """Prepare to read the sequences whose pages are int64 [B, n]."""
        ...

    def read(
        self,
        kv: Fields,
        at: Any,  # noqa: ANN401
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [B, G, n * P, D] and values [B, G, n * P, Dv] of a layer."""
        ...


class PlainPages:
    """Pages that hold keys and values as they are: one copy in, one gather out."""

    is_exact = True

    def __init__(self, kv_heads: int, page_tokens: int) -> None:
        self.kv_heads = kv_heads
        self.page_tokens = page_tokens

    def writes(self, meta: AttentionMeta) -> torch.Tensor:
        """Return the row of each token and head in a field seen as [N * G * P, D]."""
        heads = self._heads(meta.write_page)
        rows = (meta.write_page[:, None] * self.kv_heads + heads) * self.page_tokens
        return (rows + meta.write_offset[:, None]).view(-1)

    def write(self, kv: Fields, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """See `Pages.write`."""
        for name, new in (("k", k), ("v", v)):
            width = new.shape[-1]
            kv[name].view(-1, width).index_copy_(0, at, new.reshape(-1, width))

    def reads(self, table: torch.Tensor) -> tuple[torch.Size, torch.Tensor]:
        """Return the table's shape and each page's rows in a field seen as [N * G, P * D]."""
        rows = table.unsqueeze(1) * self.kv_heads + self._heads(table)[:, None]
        return table.shape, rows.view(-1)

    def read(
        self, kv: Fields, at: tuple[torch.Size, torch.Tensor], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Pages.read`."""
        return self._gather(kv["k"], at).to(dtype), self._gather(kv["v"], at).to(dtype)

    def _gather(self, field: torch.Tensor, at: tuple[torch.Size, torch.Tensor]) -> torch.Tensor:
        (batch, count), rows = at
        width = field.shape[-1]
        picked = field.view(-1, self.page_tokens * width).index_select(0, rows)
        return picked.view(batch, self.kv_heads, count * self.page_tokens, width)

    def _heads(self, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(self.kv_heads, device=like.device)


class QuantizedPages:
    """Pages in any other form, through the methods of the KVQuant."""

    is_exact = False

    def __init__(self, kv_quant: KVQuant) -> None:
        self.kv_quant = kv_quant

    def writes(self, meta: AttentionMeta) -> tuple[torch.Tensor, torch.Tensor]:
        """Return page and offset of each token."""
        return meta.write_page, meta.write_offset

    def write(
        self, kv: Fields, at: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """See `Pages.write`."""
        self.kv_quant.write(kv, *at, k, v, ORDER)

    def reads(self, table: torch.Tensor) -> torch.Tensor:
        """Return the table."""
        return table

    def read(
        self, kv: Fields, at: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Pages.read`."""
        k, v = self.kv_quant.read(kv, at, dtype, ORDER)  # [B, n, G, P, D]
        return _join(k), _join(v)


def pages_of(kv_quant: KVQuant, kv_heads: int, page_tokens: int) -> Pages:
    """Return the access that fits a stored form."""
    if kv_quant.name == "none":
        return PlainPages(kv_heads, page_tokens)
    return QuantizedPages(kv_quant)


def _join(pages: torch.Tensor) -> torch.Tensor:
    batch, count, heads, tokens, width = pages.shape
    return pages.transpose(1, 2).reshape(batch, heads, count * tokens, width)
