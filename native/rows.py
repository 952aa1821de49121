"""Norms and gates of rows; see src/rows.cpp."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

from .calls import Arguments, Operation, caller, element_type

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SILU = 0
GELU = 1


class _NormArguments(Arguments):
    operation = Operation.RMS_NORM
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("residual_stride", ctypes.c_int64),
        ("total_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("x_type", ctypes.c_int32),
        ("residual_type", ctypes.c_int32),
        ("weight_type", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _GateArguments(Arguments):
    operation = Operation.GATE
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("gate", ctypes.c_int32),
    )


@cache
def _norm() -> Callable[..., None]:
    return caller(_NormArguments)


@cache
def _gate() -> Callable[..., None]:
    return caller(_GateArguments)


def rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """Normalise rows, of the sum with `residual` where there is one, which becomes the sum.

    Args:
        x: [T, C], rows contiguous, as all below; float32 or bfloat16.
        residual: [T, C], its type may differ.
        weight: [C].
        eps: Added to the mean of squares.
        out: [T, C] of x's type; the result.
    """
    added = x if residual is None else residual
    _norm()(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        None if residual is None else residual.data_ptr(),
        out.data_ptr(),
        weight.data_ptr(),
        len(x),
        x.shape[-1],
        x.stride(0),
        added.stride(0),
        added.stride(0),
        out.stride(0),
        element_type(x),
        element_type(added),
        element_type(weight),
        eps,
        keep=(x, residual, weight, out),
    )


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Ops.silu_mul`."""
    return _gated(gate_up, SILU)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Ops.gelu_mul`."""
    return _gated(gate_up, GELU)


GATES: dict[object, int] = {silu_mul: SILU, gelu_mul: GELU}
"""What linears can do with their results in the same call."""


def _gated(gate_up: torch.Tensor, kind: int) -> torch.Tensor:
    flat = matrix(gate_up)
    out = gate_up.new_empty((len(flat), flat.shape[-1] // 2))
    gate(flat, kind, out)
    return out.view(*gate_up.shape[:-1], -1)


def matrix(x: torch.Tensor) -> torch.Tensor:
    """Return x as a matrix of contiguous rows."""
    if x.dim() != 2:
        return x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


def gate(gate_up: torch.Tensor, kind: int, out: torch.Tensor) -> None:
    """Multiply the activated first half of each row with its second half.

    Args:
        gate_up: [T, 2 * I], rows contiguous.
        kind: `SILU` or `GELU` (by tanh).
        out: [T, I] of the same type; the result.
    """
    _gate()(
        gate_up.data_ptr(),
        out.data_ptr(),
        len(gate_up),
        out.shape[-1],
        gate_up.stride(0),
        out.stride(0),
        element_type(gate_up),
        kind,
        keep=(gate_up, out),
    )
