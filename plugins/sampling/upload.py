"""From host arrays to device tensors, without a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def upload(array: NDArray[np.generic[Any]], device: torch.device) -> torch.Tensor:
    """Return `array` on `device`. The caller does not change the array afterwards.

    A copy from pageable memory may wait for the stream, so accelerators get it by pinned memory,
    which torch keeps from reuse until the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
