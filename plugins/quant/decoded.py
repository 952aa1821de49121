"""Packed rows that are decoded to float32 in every call: exact, and slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.ops import linear, row_linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .packed import PackedRows


class DecodedWeight:
    """Packed rows that are decoded to float32 whenever they are applied."""

    def __init__(self, pieces: Sequence[PackedRows], deterministic: bool) -> None:
        self._pieces = pieces
        self._deterministic = deterministic

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, K] times the transposed weight: [T, N]."""
        multiply = row_linear if self._deterministic else linear
        return multiply(x, self.dequantized(), None)

    def dequantized(self) -> torch.Tensor:
        """Return the weight in float32."""
        return decoded(self._pieces, torch.float32)

    def resident_bytes(self) -> int:
        """Return the bytes of the packed rows."""
        return sum(piece.data.nbytes for piece in self._pieces)


def decoded(pieces: Sequence[PackedRows], dtype: torch.dtype) -> torch.Tensor:
    """Return the rows of all pieces in `dtype`."""
    values = [piece.dequantize(dtype) for piece in pieces]
    return values[0] if len(values) == 1 else torch.cat(values)
