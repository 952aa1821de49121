"""An executor whose pages have no memory for a while.

The storage of each group's region is emptied in place: all tensors that are views of it, here and
in whatever else holds them, find their memory again when it is filled anew. Recorded steps know
addresses, so those that attend are forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.errors import DeviceError

if TYPE_CHECKING:
    from .torch_executor import TorchExecutor


class Sleeping:
    """Takes and gives the memory of an executor's pages."""

    def __init__(self, executor: TorchExecutor) -> None:
        self._executor = executor
        self._taken: list[int] = []

    def begin(self) -> int:
        """Give the memory back; return its bytes. Nothing may be in flight."""
        if self._taken:
            return 0
        executor, hardware = self._executor, self._executor.parts.hardware
        event = hardware.event()
        event.record()
        event.wait()
        executor.side_by_side.forget()
        regions = [_storage(one.all_fields()[0]) for one in executor.parts.groups]
        self._taken = [one.nbytes() for one in regions]
        for region in regions:
            region.resize_(0)
        hardware.trim()
        return sum(self._taken)

    def end(self) -> None:
        """Take the memory again, zeroed.

        Raises:
            DeviceError: Somebody else has it now; the pages still have none.
        """
        regions = [_storage(one.all_fields()[0]) for one in self._executor.parts.groups]
        try:
            for region, size in zip(regions, self._taken, strict=False):
                _fill(region, size)
        except (RuntimeError, MemoryError) as error:
            for region in regions:
                region.resize_(0)
            wanted = sum(self._taken) / 2**20
            raise DeviceError(
                f"the {wanted:.0f} MiB of the cache are not free any more; free them and wake the "
                f"engine again ({error})"
            ) from None
        self._taken = []


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _fill(region: torch.UntypedStorage, size: int) -> None:
    region.resize_(size)
    flat = torch.empty(0, dtype=torch.uint8, device=region.device)
    flat.set_(region)
    flat.zero_()
