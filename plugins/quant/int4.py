"""4-bit weights in the form of torch's CPU kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .packed import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .packed import PackedRows

# The kernel computes (quant - 8) * scale + zero, where a file means quant * scale + minimum:
# zero = minimum + 8 * scale, which is nothing at all for Q4_0.
_ROW_MULTIPLE = 16  # of output rows, or the kernel refuses


class Int4Weight:
    """Rows [N, K] of Q4_0, Q4_1 or Q4_K, multiplied as they are packed.

    Quants are exact. Scale and zero are rounded from float16 to bfloat16, because the kernel takes
    them in the dtype of activations and is fast for this one only: float32 and float16 take 30
    times as long. On SmolLM2 weights are 0.19 % off, where bfloat16 weights are 0.14 % off.
    A row's result does not depend on the other rows.
    """

    def __init__(self, pieces: Sequence[PackedRows]) -> None:
        self._rows = sum(len(piece) for piece in pieces)
        quants, scales = zip(*map(_unpacked, pieces), strict=True)
        missing = -self._rows % _ROW_MULTIPLE
        blank_quants = torch.zeros((missing, pieces[0].columns), dtype=torch.int32)
        blank_scales = torch.zeros((missing, pieces[0].columns // BLOCK, 2))
        self._quants: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            torch.cat((*quants, blank_quants)), 1
        )
        by_block = torch.cat((*scales, blank_scales)).transpose(0, 1)  # [K / 32, N, 2]
        self._scales = by_block.to(torch.bfloat16).contiguous()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return bfloat16 x [T, K] times the transposed weight: [T, N]."""
        return self._multiply(x.contiguous(), self._scales)

    def dequantized(self) -> torch.Tensor:
        """Return the weight [N, K] in float32, with the rounded scales."""
        columns = self._scales.shape[0] * BLOCK
        return self._multiply(torch.eye(columns), self._scales.float()).t().contiguous()

    def resident_bytes(self) -> int:
        """Return the bytes of quants, scales and zeros."""
        return self._quants.nbytes + self._scales.nbytes

    def _multiply(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self._quants, BLOCK, scales
        )
        return product if product.shape[1] == self._rows else product[:, : self._rows]


def _unpacked(piece: PackedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quants, int32 [N, K], and float32 pairs of scale and zero, [N, K / 32, 2]."""
    parts = piece.affine()
    pairs = torch.stack((parts.scales, parts.shifts + 8 * parts.scales), dim=-1)
    return parts.quants.to(torch.int32), pairs
