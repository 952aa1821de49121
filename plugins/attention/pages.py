"""What the backends of this folder share: writing into pages and reading whole sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionMeta
    from camshaft.contracts.kv_quant import KVQuant


def write_pages(
    kv_quant: KVQuant,
    kv: dict[str, torch.Tensor],
    meta: AttentionMeta,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    order: str,
) -> None:
    """Store the step's keys and values, unless `prepare` already did."""
    if k is not None and v is not None:
        kv_quant.write(kv, meta.write_page, meta.write_offset, k, v, order)


def read_sequences(
    kv_quant: KVQuant, kv: dict[str, torch.Tensor], pages: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather pages into sequences.

    Args:
        kv_quant: Reads the stored form.
        kv: The layer's fields, heads first.
        pages: int64 [B, n] pages of each sequence.
        dtype: Of the result.

    Returns:
        Keys [B, G, n * P, D] and values [B, G, n * P, Dv].
    """
    if kv_quant.name == "none":  # one gather lays each head's tokens side by side
        return tuple(_heads(kv[name], pages).to(dtype) for name in ("k", "v"))  # type: ignore[return-value]
    k, v = kv_quant.read(kv, pages, dtype, "heads_first")  # [B, n, G, P, D]
    return _join(k), _join(v)


def _heads(field: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Gather a field [N, G, P, D] of plain storage to [B, G, n * P, D]."""
    batch, count = pages.shape
    heads, tokens, width = field.shape[1:]
    rows = pages.unsqueeze(1) * heads + torch.arange(heads, device=pages.device)[:, None]
    picked = field.view(-1, tokens * width).index_select(0, rows.view(-1))
    return picked.view(batch, heads, count * tokens, width)


def _join(pages: torch.Tensor) -> torch.Tensor:
    batch, count, heads, tokens, width = pages.shape
    return pages.transpose(1, 2).reshape(batch, heads, count * tokens, width)
