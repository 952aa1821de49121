"""Rows of a weight in the form that the file has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from camshaft.checkpoint import CheckpointTensor
from camshaft.checkpoint.affine import Affine, affine
from camshaft.checkpoint.mapped import give_back

FOUR_BIT = ("q4_0", "q4_1", "q4_k")
"""Formats whose weights are computed as they are packed."""
BLOCK = 32
"""Weights that share a scale in each of `FOUR_BIT`."""


@dataclass(slots=True)
class PackedRows:
    """Rows [N, K] of one format.

    Attributes:
        format: As `CheckpointTensor.format`.
        columns: K.
        data: uint8 [N, bytes of a row].
    """

    format: str
    columns: int
    data: torch.Tensor

    @classmethod
    def copy_of(cls, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> PackedRows:
        """Copy a tensor out of its file, in the order of `rows`. Blocks never cross rows."""
        data = torch.from_numpy(tensor.data).view(tensor.shape[0], -1)
        data = data.clone() if rows is None else data.index_select(0, rows)
        give_back(tensor.data)
        return cls(tensor.format, tensor.shape[1], data)

    def __len__(self) -> int:
        return len(self.data)

    def dequantize(self, dtype: torch.dtype, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return rows `ids`, or all, in `dtype`."""
        data = self.data if ids is None else self.data.index_select(0, ids)
        return self._stored(data).dequantize(dtype)

    def part(self, first: int, last: int) -> PackedRows:
        """Return rows `first` to `last - 1`, sharing the bytes."""
        return PackedRows(self.format, self.columns, self.data[first:last])

    def affine(self) -> Affine:
        """Return quants, scales and shifts of all rows."""
        return affine(self._stored(self.data))

    def _stored(self, data: torch.Tensor) -> CheckpointTensor:
        shape = (len(data), self.columns)
        return CheckpointTensor("", shape, self.format, data.numpy().reshape(-1), Path())


def quantize_q4_0(weight: torch.Tensor) -> PackedRows:
    """Round a float32 weight [N, K] to Q4_0; for weights that are drawn at random.

    The scale of a block makes its extreme value, with its sign, the quant 0.
    """
    blocks = weight.view(len(weight), -1, BLOCK)
    extreme = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = (extreme / -8).half()
    divisor = torch.where(scale == 0, 1, scale).float()
    quants = ((blocks / divisor).round() + 8).clamp_(0, 15).to(torch.uint8)
    low, high = quants.split(BLOCK // 2, dim=-1)
    packed = torch.cat((scale.view(torch.uint8), low | high << 4), dim=-1)
    return PackedRows("q4_0", weight.shape[1], packed.view(len(weight), -1))
