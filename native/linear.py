"""Linears whose weights stay packed; see src/linear.cpp for the form."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from .calls import Arguments, Operation, caller, element_type

if TYPE_CHECKING:
    from collections.abc import Callable

NO_GATE = -1

LANES = 16
"""Output rows that lie side by side."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a weight is stored.

    Attributes:
        bits: Of a quant: 4 or 8.
        group: Weights of a row that share a scale and a shift: 32, or 16 with 8 bits.
        is_wide: Scales and shifts are float32, else float16.
    """

    bits: int
    group: int
    is_wide: bool

    @property
    def head(self) -> int:
        """Bytes of the scales and shifts of one group of all lanes."""
        return 2 * LANES * (4 if self.is_wide else 2)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K] in the form that the library multiplies with.

    Attributes:
        form: How.
        outputs: N.
        inputs: K.
        data: uint8, 64-byte aligned; rows are filled up to a multiple of `LANES`.
    """

    form: Form
    outputs: int
    inputs: int
    data: torch.Tensor


def pack(
    form: Form, quants: torch.Tensor, scales: torch.Tensor, shifts: torch.Tensor
) -> PackedWeight:
    """Return the weight `scale * quant + shift` in the library's form.

    Args:
        form: Which fits the values: float16 scales are rounded to that.
        quants: uint8 [N, K], below 16 with 4 bits.
        scales: float32 [N, K / group].
        shifts: The same shape.
    """
    rows, inputs = quants.shape
    missing = -rows % LANES
    if missing:
        quants, scales, shifts = (
            torch.nn.functional.pad(part, (0, 0, 0, missing)) for part in (quants, scales, shifts)
        )
    groups = inputs // form.group
    kind = torch.float32 if form.is_wide else torch.float16
    heads = torch.stack((scales, shifts)).to(kind).view(2, -1, LANES, groups)
    lanes = quants.view(-1, LANES, groups, form.group)
    if form.bits == 4:
        low, high = lanes.chunk(2, dim=-1)
        lanes = low | high << 4
    vectors = lanes.unflatten(-1, (-1, 4)).permute(0, 2, 3, 1, 4)  # [blocks, groups, ., lane, 4]
    data = torch.empty(len(vectors), groups, form.head + vectors[0, 0].numel(), dtype=torch.uint8)
    data[..., : form.head].view(kind).view(-1, groups, 2, LANES).copy_(heads.permute(1, 3, 0, 2))
    data[..., form.head :].view(vectors.shape).copy_(vectors)
    return PackedWeight(form, rows, inputs, data)


class _LinearArguments(Arguments):
    operation = Operation.LINEAR
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("x_type", ctypes.c_int32),
        ("out_type", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("is_wide", ctypes.c_int32),
        ("many", ctypes.c_int32),
        ("gate", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _LookupArguments(Arguments):
    operation = Operation.LOOKUP
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("out_type", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("is_wide", ctypes.c_int32),
    )


@cache
def _linear() -> Callable[..., None]:
    return caller(_LinearArguments)


@cache
def _lookup() -> Callable[..., None]:
    return caller(_LookupArguments)


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    many: int = 0,
    gate: int = NO_GATE,
) -> None:
    """Multiply rows with a packed weight.

    A row's bits do not depend on the other rows, unless `many` lets them.

    Args:
        x: [T, K] float32 or bfloat16, rows contiguous. Rounded to 8 bits, a scale for each group.
        weight: [N, K].
        bias: float32, N filled up to a multiple of `LANES`, or None.
        out: [T, N] float32 or bfloat16, rows contiguous; the result. With a gate [T, N / 2], and N
            is a multiple of twice `LANES`.
        many: From how many rows on the weight is rounded to 8 bits with one scale for each of its
            rows in every call, which is faster for all but few rows; 0 for never.
        gate: One of `rows`, by which the first half of a product's row, activated, is multiplied
            with the second, or `NO_GATE`.
    """
    form = weight.form
    _linear()(
        x.data_ptr(),
        out.data_ptr(),
        weight.data.data_ptr(),
        None if bias is None else bias.data_ptr(),
        len(x),
        weight.inputs,
        weight.outputs,
        x.stride(0),
        out.stride(0),
        element_type(x),
        element_type(out),
        form.bits,
        form.group,
        form.is_wide,
        many,
        gate,
        0,
        keep=(x, weight, bias, out),
    )


def lookup(ids: torch.Tensor, weight: PackedWeight, out: torch.Tensor) -> None:
    """Decode rows of a weight.

    Args:
        ids: int64 [T], contiguous.
        weight: [N, K].
        out: [T, K] float32 or bfloat16, contiguous; the result.
    """
    form = weight.form
    _lookup()(
        weight.data.data_ptr(),
        ids.data_ptr(),
        out.data_ptr(),
        len(ids),
        weight.inputs,
        element_type(out),
        form.bits,
        form.group,
        form.is_wide,
        keep=(ids, weight, out),
    )
