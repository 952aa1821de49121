"""The processor of this machine, through torch."""

from __future__ import annotations

import ctypes
import logging
import os
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from camshaft import native
from camshaft.checkpoint.mapped import forget
from camshaft.contracts.hardware import Communicator, HardwareBackend, MemoryReport
from camshaft.errors import DeviceError
from camshaft.facts import Capability, DeviceFacts
from camshaft.native.arena import Arena
from camshaft.native.tape import record

from .components import CpuSettings
from .threads import look, memory_bound, plan_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from camshaft.contracts.hardware import Outputs, Recording

    from .threads import ThreadPlan

_FLAGS = {"amx_tile": Capability.AMX, "avx512f": Capability.AVX512}


class CpuBackend(HardwareBackend):
    """Runs on the host's cores. Everything is synchronous, so events have nothing to wait for."""

    device = "cpu"
    exact_sizes = 32

    def __init__(self, settings: CpuSettings) -> None:
        self.settings = settings
        self.plan: ThreadPlan = plan_threads(settings, look())
        self._facts: DeviceFacts | None = None
        self._arenas: defaultdict[int, Arena] = defaultdict(Arena)
        self._told = False

    def facts(self) -> DeviceFacts:
        """See `HardwareBackend.facts`."""
        if self._facts is None:
            name, flags = _processor()
            can = {what for flag, what in _FLAGS.items() if flag in flags}
            if native.expected():
                can.add(Capability.STEP_GRAPHS)
            self._facts = DeviceFacts(
                kind="cpu",
                name=name,
                memory_bytes=memory_limit(),
                dtypes=frozenset({"float32", "bfloat16"}),
                capabilities=frozenset(can),
                threads=self.threads,
                architecture=os.uname().machine,
            )
        return self._facts

    def notes(self) -> list[str]:
        """See `HardwareBackend.notes`."""
        return [str(self.plan)]

    @property
    def threads(self) -> int:
        """Threads that the model runs on."""
        return self.plan.threads

    def open(self) -> None:
        """Set torch's threads, and take as many for compiled operations once there are any."""
        torch.set_num_threads(self.threads)
        native.open_team(self.threads, self.plan.cores, self.plan.spins)

    def close(self) -> None:
        """Give threads and the memory of recordings back."""
        native.close_team()
        self._arenas.clear()

    def memory(self) -> MemoryReport:
        """See `HardwareBackend.memory`."""
        limit = memory_limit()
        used = psutil.Process().memory_info().rss
        return MemoryReport(limit, max(0, min(psutil.virtual_memory().available, limit - used)))

    def allocate(self, size: int) -> torch.Tensor:
        """See `HardwareBackend.allocate`. Memory that was never written to is not taken yet."""
        free = self.memory().free
        if size > free:
            raise DeviceError(
                f"{size / 2**20:.0f} MiB are asked for and {free / 2**20:.0f} MiB are free; "
                "lower cache.memory"
            )
        region = torch.empty(size, dtype=torch.uint8)
        fresh = forget(region.data_ptr(), size)
        region[: fresh.start].zero_()
        region[fresh.stop :].zero_()
        return region

    def trim(self) -> None:
        """See `HardwareBackend.trim`. Does nothing where the C library cannot."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(ctypes.c_size_t(0))

    def copy_pages(
        self, fields: Sequence[torch.Tensor], source: Sequence[int], target: Sequence[int]
    ) -> None:
        """See `HardwareBackend.copy_pages`."""
        from_ = torch.tensor(source, dtype=torch.int64)
        to = torch.tensor(target, dtype=torch.int64)
        for tensor in fields:
            tensor[to] = tensor[from_]

    def event(self) -> HostEvent:
        """Return an event that has always happened."""
        return HostEvent()

    def stream(self, number: int = 0) -> AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return nullcontext()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy: the next step may write to the tensor."""
        return tensor.clone()

    def host_memory(self, size: int) -> torch.Tensor:
        """Return plain memory."""
        return torch.empty(size, dtype=torch.uint8)

    def capture(self, function: Callable[[], Outputs], lane: int = 0) -> Recording:
        """Record what a function does, if compiled operations are part of it.

        Otherwise, and with a warning where it cannot be recorded, it is kept to be run again.
        """
        if native.reasons():
            return Repeated(function)
        try:
            recording = record(function, self._arenas[lane])
        except DeviceError as error:
            if not self._told:
                logging.getLogger("camshaft").warning("steps are not recorded: %s", error)
            self._told = True
            return Repeated(function)
        return recording if recording.compiled else Repeated(function)

    def communicator(self, rank: int, size: int) -> Communicator:
        """See `HardwareBackend.communicator`."""
        if size != 1:
            raise DeviceError(f"cpu runs on one rank; {size} are asked for")
        return SingleRank()


class Repeated:
    """A function that runs anew at each replay."""

    def __init__(self, function: Callable[[], Outputs]) -> None:
        self._function = function

    def replay(self) -> Outputs:
        """Run the function."""
        return self._function()

    def begin(self) -> Callable[[], Outputs]:
        """Run the function when its results are wanted."""
        return self._function

    def share(self) -> None:
        """Nothing is kept."""


class HostEvent:
    """An event on a device without queues."""

    def record(self) -> None:
        """Nothing to mark."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def reached(self) -> bool:
        """Return True: what was asked for is done."""
        return True

    def join(self) -> None:
        """Nothing to wait for."""


class SingleRank:
    """The communicator of a single rank."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """The sum over one rank is there."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The only rank has it."""


def usable_cores() -> int:
    """Return the cores that this process may use: affinity, hyper-threads, a container's quota."""
    return plan_threads(CpuSettings(), look()).threads


def memory_limit() -> int:
    """Return the machine's memory, or the container's limit if that is lower; bytes."""
    total: int = psutil.virtual_memory().total
    return min(total, memory_bound() or total)


def _processor() -> tuple[str, set[str]]:
    """Return the processor's name and its flags, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    if info.exists():
        for line in info.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    return fields.get("model name", os.uname().machine), set(fields.get("flags", "").split())
