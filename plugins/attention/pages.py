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
    kv_quant: KVQuant,
    kv: dict[str, torch.Tensor],
    table: torch.Tensor,
    dtype: torch.dtype,
    order: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather pages into sequences.

    Args:
        kv_quant: Reads the stored form.
        kv: The layer's fields.
        table: int64 [B, n] pages of each sequence.
        dtype: Of the result.
        order: Of the layout.

    Returns:
        Keys [B, G, n * P, D] and values [B, G, n * P, Dv], maybe strided.
    """
    k, v = kv_quant.read(kv, table, dtype, order)  # [B, n, G, P, D]
    return _join(k), _join(v)


def _join(pages: torch.Tensor) -> torch.Tensor:
    batch, count, heads, tokens, width = pages.shape
    # tokens-first storage is [B, n, P, G, D] in memory, so this reshape is a view of it
    by_token = pages.transpose(2, 3).reshape(batch, count * tokens, heads, width)
    return by_token.transpose(1, 2)
