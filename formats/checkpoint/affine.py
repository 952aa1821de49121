"""Packed formats as unsigned quants with a scale and a shift for each group of a row.

`weight = scale * quant + shift` holds for all of them: a signed quant is an unsigned one whose
shift is its lowest value times the scale, and the nonlinear quants of `iq4_nl` are 8-bit ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from .dequantize import NONLINEAR, five_bits, halves
from .formats import FORMATS
from .k_quants import floats, q2_k_parts, q3_k_parts, q4_k_parts, q5_k_parts, q6_k_parts

if TYPE_CHECKING:
    from .tensor import CheckpointTensor


class Affine(NamedTuple):
    """A weight [N, K] taken apart.

    Attributes:
        bits: Of the largest quant: 4 or 8.
        group: Weights that share a scale and a shift.
        is_exact_in_halves: Scales and shifts are float16 numbers.
        quants: uint8 [N, K].
        scales: float32 [N, K / group].
        shifts: The same shape.
    """

    bits: int
    group: int
    is_exact_in_halves: bool
    quants: torch.Tensor
    scales: torch.Tensor
    shifts: torch.Tensor


def affine(tensor: CheckpointTensor) -> Affine:
    """Take a packed tensor apart.

    Args:
        tensor: Of one of `AFFINE`, [N, K].
    """
    bits, group, is_exact, parts = _FORMATS[tensor.format]
    blocks = torch.from_numpy(tensor.data).view(-1, FORMATS[tensor.format].block_bytes)
    quants, scales, shifts = (part.reshape(tensor.shape[0], -1) for part in parts(blocks))
    return Affine(bits, group, is_exact, quants, scales, shifts)


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Of N blocks: quants uint8 [N, weights], scales and shifts float32 [N, groups]."""


def _signed(quants: torch.Tensor, scales: torch.Tensor, lowest: int) -> Parts:
    """Return the parts of quants that stand for themselves plus `lowest`."""
    return quants, scales, scales * lowest


def _with_minimum(heads: torch.Tensor, quants: torch.Tensor) -> Parts:
    """Return the parts where a block begins with its scale and its minimum."""
    scales, minima = floats(heads).split(1, dim=1)
    return quants, scales, minima


def _q8_0(blocks: torch.Tensor) -> Parts:
    return _signed(blocks[:, 2:] ^ 128, floats(blocks[:, :2]), -128)


def _iq4_nl(blocks: torch.Tensor) -> Parts:
    places = (NONLINEAR + 128).to(torch.uint8)
    quants = places[halves(blocks[:, 2:]).int()]
    return _signed(quants, floats(blocks[:, :2]), -128)


def _less_minima(parts: Parts) -> Parts:
    """Return the parts where the minima of groups are subtracted."""
    quants, scales, minima = parts
    return quants, scales, -minima


_FORMATS: dict[str, tuple[int, int, bool, Callable[[torch.Tensor], Parts]]] = {
    "q4_0": (4, 32, True, lambda b: _signed(halves(b[:, 2:]), floats(b[:, :2]), -8)),
    "q4_1": (4, 32, True, lambda b: _with_minimum(b[:, :4], halves(b[:, 4:]))),
    "q5_0": (8, 32, True, lambda b: _signed(five_bits(b[:, 2:]), floats(b[:, :2]), -16)),
    "q5_1": (8, 32, True, lambda b: _with_minimum(b[:, :4], five_bits(b[:, 4:]))),
    "q8_0": (8, 32, True, _q8_0),
    "iq4_nl": (8, 32, True, _iq4_nl),
    "q2_k": (8, 16, False, lambda b: _less_minima(q2_k_parts(b))),
    "q3_k": (8, 16, False, lambda b: _signed(*q3_k_parts(b), -4)),
    "q4_k": (4, 32, False, lambda b: _less_minima(q4_k_parts(b))),
    "q5_k": (8, 32, False, lambda b: _less_minima(q5_k_parts(b))),
    "q6_k": (8, 16, False, lambda b: _signed(*q6_k_parts(b), -32)),
}
"""Bits, group, whether float16 holds scales and shifts, and how blocks come apart."""

AFFINE = tuple(_FORMATS)
"""The formats that `affine` takes apart."""
