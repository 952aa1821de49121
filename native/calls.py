"""How operations are called: a structure of addresses and sizes, numbered as in library.cpp."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from camshaft.errors import DeviceError

from .library import library

if TYPE_CHECKING:
    from collections.abc import Callable


class Operation(IntEnum):
    """Numbers of operations: their places in the list of library.cpp."""

    LINEAR = 0
    LOOKUP = 1
    RMS_NORM = 2
    GATE = 3
    ROTATE = 4
    ATTEND = 5


class ElementType(IntEnum):
    """Of tensors."""

    FLOAT32 = 0
    BFLOAT16 = 1


_TYPES = {torch.float32: ElementType.FLOAT32, torch.bfloat16: ElementType.BFLOAT16}


def element_type(tensor: torch.Tensor) -> int:
    """Return the number of a tensor's dtype.

    Raises:
        DeviceError: It is neither float32 nor bfloat16.
    """
    try:
        return _TYPES[tensor.dtype]
    except KeyError:
        raise DeviceError(
            f"compiled operations take float32 and bfloat16, not {tensor.dtype}"
        ) from None


class Arguments(ctypes.Structure):
    """Base of all arguments."""

    operation: Operation


_kept: list[object] | None = None
"""What a tape that is being recorded must keep alive; None while none is."""


def keep_in(kept: list[object] | None) -> None:
    """Let operations put what they were given into a list from now on; None ends it."""
    global _kept
    _kept = kept


def caller(kind: type[Arguments]) -> Callable[..., None]:
    """Return a function that runs an operation.

    Its arguments are the fields in order, addresses as integers; `keep` is a tuple of the tensors
    that they belong to.

    Raises:
        DeviceError: The structure is not what the library was compiled with.
    """
    code = library()
    operation = int(kind.operation)
    expected = code.argument_bytes(operation)
    if expected != ctypes.sizeof(kind):
        raise DeviceError(
            f"{kind.__name__} has {ctypes.sizeof(kind)} bytes and {expected} in {code.path}; "
            "these do not belong together: install camshaft anew"
        )
    run, address = code.run, ctypes.addressof

    def call(*fields: object, keep: tuple[object, ...]) -> None:
        arguments = kind(*fields)
        if _kept is not None:
            _kept.append(keep)
        run(operation, address(arguments))

    return call
