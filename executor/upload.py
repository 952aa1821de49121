"""One copy to the device for all the indices of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_device(values: NDArray[np.integer], device: str) -> torch.Tensor:
    """Copy host integers to an int64 tensor, without waiting for the device."""
    host = torch.from_numpy(values.astype(np.int64, copy=False))
    if device != "cpu":
        host = host.pin_memory()  # or the copy would wait
    return host.to(device, non_blocking=True)


class Upload:
    """Collects host integers, sends them as one int64 tensor, and hands out its pieces."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int32]] = []
        self._tensors: tuple[torch.Tensor, ...] = ()

    def add(self, values: NDArray[np.int32]) -> int:
        """Add an array and return its number, for `tensor` after `send`."""
        self._arrays.append(values)
        return len(self._arrays) - 1

    def send(self, device: str) -> None:
        """Copy everything."""
        joined = np.concatenate(self._arrays, dtype=np.int64, casting="safe")
        sizes = [len(values) for values in self._arrays]
        self._tensors = to_device(joined, device).split(sizes)

    def tensor(self, number: int) -> torch.Tensor:
        """Return an array on the device: int64."""
        return self._tensors[number]
