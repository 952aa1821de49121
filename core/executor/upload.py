"""One copy to the device for all the indices of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        host = torch.from_numpy(joined)
        if device != "cpu":
            host = host.pin_memory()  # or the copy would wait for the device
        self._tensors = host.to(device, non_blocking=True).split(sizes)

    def tensor(self, number: int) -> torch.Tensor:
        """Return an array on the device: int64."""
        return self._tensors[number]
