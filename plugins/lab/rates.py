"""What a device reaches at its best, measured now: the yardstick of every roofline.

Source: Williams, Waterman and Patterson, "Roofline", CACM 2009.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_REPEATS = 10


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one device.

    Attributes:
        copy_bytes_s: Bytes read and written per second by a large copy.
        read_bytes_s: Bytes read per second by a large sum.
        gemm_flop_s: Operations per second of a large square product in the dtype asked for.
    """

    copy_bytes_s: float
    read_bytes_s: float
    gemm_flop_s: float

    @property
    def bytes_s(self) -> float:
        """The better of the two memory rates."""
        return max(self.copy_bytes_s, self.read_bytes_s)


def measured_rates(device: str, dtype: torch.dtype = torch.bfloat16) -> Rates:
    """Measure a device: under a second on any.

    Args:
        device: Torch's name.
        dtype: Of the product.
    """
    is_cpu = torch.device(device).type == "cpu"
    count, side = (2**25, 1024) if is_cpu else (2**29, 8192)  # far beyond the caches
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(side, side, device=device).to(dtype)
    timed = _host_seconds if is_cpu else _device_seconds
    return Rates(
        copy_bytes_s=2 * source.nbytes / timed(lambda: target.copy_(source)),
        read_bytes_s=source.nbytes / timed(lambda: source.sum()),
        gemm_flop_s=2 * side**3 / timed(lambda: matrix @ matrix),
    )


def _host_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _device_seconds(work: Callable[[], object]) -> float:
    """Return the median by events, which leaves out what a launch costs on the host."""
    times: list[float] = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
