"""What launches depend on of the device that a backend runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from camshaft.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INTERPRETED = 8  # multiprocessors of triton's interpreter: as good a number as any


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Facts that the first tensor of a step brings.

    Attributes:
        processors: Multiprocessors.
        early: Kernels start while the kernel before them ends.
        is_roomy: Has the shared memory of NVIDIA's devices from Hopper on.
    """

    processors: int
    early: bool
    is_roomy: bool = False


def staged(values: NDArray[np.integer], device: torch.device) -> torch.Tensor:
    """Return host integers from where a copy to the device does not wait for it."""
    host = torch.from_numpy(values)
    # torch keeps pinned memory until the copy is done
    return host if device.type == "cpu" else host.pin_memory()


def stream_of(device: torch.device) -> int:
    """Return the number of the current stream, 0 on a CPU."""
    return 0 if device.type == "cpu" else int(torch.cuda.current_stream(device).cuda_stream)


def look_at(device: torch.device, early: bool | None) -> OnDevice:
    """Return facts of a device.

    Args:
        device: That of a step's tensors.
        early: What the recipe says; None is wherever the device can.

    Raises:
        DeviceError: The recipe wants what the device cannot do.
    """
    can = _is_hopper(device)
    if early and not can:
        raise DeviceError(
            "attention: early_launch needs an NVIDIA device of sm_90 or later, and this is "
            f"{_name(device)}. Set it to null or false."
        )
    if device.type == "cpu":
        return OnDevice(INTERPRETED, early=False)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return OnDevice(processors, early=can if early is None else early, is_roomy=can)


def require_conversion(device: torch.device, form: str) -> None:
    """Refuse 8-bit floats where triton cannot convert them.

    Raises:
        DeviceError: NVIDIA's devices can from sm_89 on.
    """
    if form != "fp8" or device.type != "cuda" or torch.version.hip is not None:
        return
    if torch.cuda.get_device_capability(device) < (8, 9):
        raise DeviceError(
            "attention: keys and values in fp8 need an NVIDIA device of sm_89 or later, and this "
            f"is {_name(device)}. Set quant.kv to int8."
        )


def _is_hopper(device: torch.device) -> bool:
    """Whether the device is NVIDIA's, with programmatic dependent launch."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"a {device.type}"
