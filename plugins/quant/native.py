"""Packed weights multiplied by the compiled operations, with activations of 8 bits."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import torch

from camshaft.checkpoint.affine import Affine
from camshaft.native.linear import LANES, Form, PackedWeight, linear, lookup, pack

from .packed import PackedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 2**23
"""Weights that are taken apart at once: what that needs beside them is ten times as many bytes."""


class NativeWeight:
    """Rows [N, K] of any packed formats.

    Weights are those of the file; activations are rounded to 8 bits for each group of weights that
    shares a scale. A row's result does not depend on the other rows, unless many rows may be
    multiplied with weights that are rounded to 8 bits, one scale for each of theirs.
    """

    def __init__(self, pieces: Sequence[PackedRows], many: int = 0) -> None:
        """Pack.

        Args:
            pieces: One below the other.
            many: From how many rows on that may be, 0 for never.
        """
        self._many = many
        self._columns = pieces[0].columns
        self._weights = [
            _packed(list(alike)) for _, alike in groupby(pieces, lambda piece: piece.format)
        ]
        self._rows = sum(len(piece) for piece in pieces)

    def gates(self) -> bool:
        """Return whether halves of a result can be multiplied with each other at once."""
        return len(self._weights) == 1 and self._rows % (2 * LANES) == 0

    def apply_gated(self, x: torch.Tensor, gate: int) -> torch.Tensor:
        """Return the gated product [T, N / 2] in x's dtype; see `linear`."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty((len(x), self._rows // 2), dtype=x.dtype)
        linear(x, self._weights[0], None, out, self._many, gate)
        return out

    def apply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return x [T, K] times the transposed weight: [T, N] of `dtype`."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty((len(x), self._rows), dtype=dtype)
        first = 0
        for weight in self._weights:
            linear(x, weight, None, out[:, first : first + weight.outputs], self._many)
            first += weight.outputs
        return out

    def lookup(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return rows `ids` [T]: [T, K]."""
        (weight,) = self._weights
        out = torch.empty((len(ids), self._columns), dtype=dtype)
        lookup(ids.contiguous(), weight, out)
        return out

    def dequantized(self) -> torch.Tensor:
        """Return the weight [N, K] in float32."""
        decoded = []
        for weight in self._weights:
            out = torch.empty(weight.outputs, self._columns)
            lookup(torch.arange(weight.outputs), weight, out)
            decoded.append(out)
        return torch.cat(decoded)

    def resident_bytes(self) -> int:
        """Return the bytes of the packed forms."""
        return sum(weight.data.nbytes for weight in self._weights)


def _packed(pieces: Sequence[PackedRows]) -> PackedWeight:
    """Pack rows of one format, a part of them at a time."""
    columns = pieces[0].columns
    at_once = max(LANES, _AT_ONCE // columns // LANES * LANES)
    data = torch.cat([piece.data for piece in pieces]) if len(pieces) > 1 else pieces[0].data
    rows = PackedRows(pieces[0].format, columns, data)
    parts = [_pack(rows.part(at, at + at_once).affine()) for at in range(0, len(data), at_once)]
    whole = parts[0].data if len(parts) == 1 else torch.cat([part.data for part in parts])
    return PackedWeight(parts[0].form, len(data), columns, whole)


def _pack(parts: Affine) -> PackedWeight:
    form = Form(parts.bits, parts.group, not parts.is_exact_in_halves)
    return pack(form, parts.quants, parts.scales, parts.shifts)
