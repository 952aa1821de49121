"""Memory that recordings share: given out again when Python has dropped the tensors in it.

What a function computed and dropped while it was recorded is free again for what it computes next,
as it would be without a recording; and a later recording of the same lane uses the same memory.
That is sound because recordings of a lane replay one after the other, each in its own order.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNED = 64
_SMALLEST = 64
"""Bytes of a block; sizes are powers of two. What lies behind a tensor is never touched."""


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Memory that stays where it is as long as the arena lives: uint8 [a power of two], twice."""

    array: NDArray[np.uint8]
    memory: torch.Tensor


class Arena:
    """Blocks of memory by size, and which of them nobody uses now."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._free: defaultdict[int, list[_Block]] = defaultdict(list)

    @property
    def bytes(self) -> int:
        """All memory that was taken so far."""
        return sum(len(block.memory) for block in self._blocks.values())

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape, strides and dtype; what it holds is void.

        Its memory is free again when it and all views of it are gone.
        """
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (last + 1) * tensor.element_size() if tensor.numel() else 0
        return _shaped(self._take(needed), tensor, 0)

    def lasting(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's elements without keeping its memory from being used again.

        That of a tensor from elsewhere is kept: it is returned as it is.
        """
        block = self._blocks.get(storage_of(tensor))
        if block is None:
            return tensor
        return _shaped(block.memory, tensor, int(tensor.storage_offset()))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor stands in this arena."""
        return storage_of(tensor) in self._blocks

    def _take(self, needed: int) -> torch.Tensor:
        size = max(_SMALLEST, 1 << max(0, needed - 1).bit_length())
        if self._free[size]:
            block = self._free[size].pop()
        else:
            block = _new_block(size)
            self._blocks[block.memory.data_ptr()] = block
        array = block.array[:]  # torch holds it, and nothing else does, as long as it is needed
        weakref.finalize(array, self._free[size].append, block).atexit = False
        return torch.from_numpy(array)


def _new_block(size: int) -> _Block:
    array = np.empty(size + _ALIGNED, dtype=np.uint8)
    first = -array.ctypes.data % _ALIGNED
    array = array[first : first + size]
    return _Block(array, torch.from_numpy(array))


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor stands in; 0 for a library's own form."""
    is_plain = tensor.layout is torch.strided  # oneDNN's weights have memory that torch cannot see
    return tensor.untyped_storage().data_ptr() if is_plain else 0


def _shaped(memory: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), offset)
