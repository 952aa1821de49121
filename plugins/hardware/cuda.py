"""An NVIDIA or AMD accelerator through torch, whose API is one for both."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from camshaft.contracts.hardware import Communicator, HardwareBackend, MemoryReport
from camshaft.errors import DeviceError
from camshaft.facts import Capability, DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from camshaft.contracts.hardware import Outputs

    from .components import CudaSettings

_ALIGN = 64


class _Lane(NamedTuple):
    """Where a lane's graphs are recorded, always the same.

    Memory of the pool goes only to the stream that had it before, and libraries keep a workspace
    for each stream.
    """

    stream: torch.cuda.Stream
    pool: Any


class CudaBackend(HardwareBackend):
    """One device, chosen by index. Weights, pages and steps live on it; the host only launches."""

    kind = "cuda"
    capabilities = frozenset({Capability.CUDA, Capability.GRAPHS, Capability.STREAMS})

    def __init__(self, settings: CudaSettings) -> None:
        self.settings = settings
        self.device = f"cuda:{settings.index}"
        self._facts: DeviceFacts | None = None
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._lanes: dict[int, _Lane] = {}
        self._kept: list[CudaRecording] = []
        self._in_use = 0

    def facts(self) -> DeviceFacts:
        """See `HardwareBackend.facts`.

        Raises:
            DeviceError: Torch sees no such device, or was built for another vendor.
        """
        if self._facts is None:
            self._facts = self._probe()
        return self._facts

    def _probe(self) -> DeviceFacts:
        built_for = "rocm" if torch.version.hip else "cuda"
        count = torch.cuda.device_count()
        if count <= self.settings.index:
            raise DeviceError(
                f"hardware '{self.kind}' wants device {self.settings.index}, and torch "
                f"{torch.__version__} sees {count}; name another index, or say `hardware: cpu`"
            )
        if built_for != self.kind:
            raise DeviceError(f"this torch is built for {built_for}; say `hardware: {built_for}`")
        found = torch.cuda.get_device_properties(self.settings.index)
        capabilities = set(self.capabilities)
        if _has_triton():
            capabilities.add(Capability.TRITON)
        if self.has_fp8(found):
            capabilities.add(Capability.FP8)
        return DeviceFacts(
            kind=self.kind,
            name=found.name,
            memory_bytes=found.total_memory,
            dtypes=frozenset({"float32", "bfloat16", "float16"}),
            capabilities=frozenset(capabilities),
            architecture=self.architecture(found),
        )

    def architecture(self, found: Any) -> str:  # noqa: ANN401 - torch's own record
        """Return the compute capability."""
        return f"sm_{found.major}{found.minor}"

    def has_fp8(self, found: Any) -> bool:  # noqa: ANN401
        """Return whether matrix units take e4m3."""
        return (found.major, found.minor) >= (8, 9)

    def open(self) -> None:
        """Make the device current and allow its own fast paths."""
        self.facts()
        torch.cuda.set_device(self.settings.index)
        torch.cuda.init()

    def close(self) -> None:
        """Wait for what runs, and return cached memory."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def memory(self) -> MemoryReport:
        """See `HardwareBackend.memory`. Memory that torch holds and does not use is free."""
        free, total = torch.cuda.mem_get_info(self.settings.index)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        reserve = int(total * self.settings.headroom)
        return MemoryReport(total, max(0, free + cached - reserve))

    def peak(self) -> int:
        """See `HardwareBackend.peak`."""
        most = torch.cuda.max_memory_allocated(self.device) - self._in_use
        torch.cuda.reset_peak_memory_stats(self.device)
        self._in_use = torch.cuda.memory_allocated(self.device)
        return max(0, most)

    def allocate(self, size: int) -> torch.Tensor:
        """See `HardwareBackend.allocate`."""
        try:
            region = torch.zeros(size, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError:
            free = self.memory().free
            raise DeviceError(
                f"{size / 2**20:.0f} MiB are asked for and {free / 2**20:.0f} MiB are free; "
                "lower cache.memory"
            ) from None
        assert region.data_ptr() % _ALIGN == 0
        return region

    def trim(self) -> None:
        """See `HardwareBackend.trim`."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def copy_pages(
        self, fields: Sequence[torch.Tensor], source: Sequence[int], target: Sequence[int]
    ) -> None:
        """See `HardwareBackend.copy_pages`."""
        if not source:
            return
        from_, to = torch.tensor([source, target], dtype=torch.int64).to(self.device)
        for tensor in fields:
            tensor[to] = tensor[from_]

    def event(self) -> CudaEvent:
        """Return a new event."""
        return CudaEvent()

    def stream(self, number: int = 0) -> AbstractContextManager[Any]:
        """See `HardwareBackend.stream`. From number 1 on, they go before the usual stream.

        Else a kernel would wait for all blocks of those that were launched before it elsewhere.
        """
        if number not in self._streams:
            self._streams[number] = self._new_stream(number)
        context: AbstractContextManager[Any] = torch.cuda.stream(self._streams[number])
        return context

    def _new_stream(self, number: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device, priority=-1 if number else 0)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy into pinned memory."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def host_memory(self, size: int) -> torch.Tensor:
        """Return pinned memory; torch takes it in powers of two."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def capture(self, function: Callable[[], Outputs], lane: int = 0) -> CudaRecording:
        """Run a function once, so that all it needs is loaded, and record it in a graph.

        Graphs of a lane share their scratch memory: they replay one after the other. Before each
        recording `torch.cuda.graph` would wait for the device and give cached memory back, as a
        graph cannot take from that; here it is given back only if memory runs out.
        """
        function()
        try:
            return self._record(function, lane)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            return self._record(function, lane)

    def _record(self, function: Callable[[], Outputs], number: int) -> CudaRecording:
        if number not in self._lanes:
            lane = _Lane(self._new_stream(number), torch.cuda.graph_pool_handle())
            self._lanes[number] = lane
            value = torch.zeros(1, device=self.device)
            # a pool cannot be used again after its last graph has gone: this one stays
            self._kept.append(self.capture(lambda: (value.add_(1),), number))
        lane, graph = self._lanes[number], torch.cuda.CUDAGraph()
        lane.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(lane.stream):
            # other threads may do what a recording forbids, such as to allocate pinned memory
            graph.capture_begin(pool=lane.pool, capture_error_mode="thread_local")
            try:
                results = function()
            except BaseException:
                # the recording may be void or empty; the cause counts
                with suppress(RuntimeError), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    graph.capture_end()
                raise
            graph.capture_end()
        return CudaRecording(graph, results)

    def communicator(self, rank: int, size: int) -> Communicator:
        """See `HardwareBackend.communicator`."""
        if size != 1:
            raise DeviceError(f"{self.kind} runs on one rank in this version; {size} are asked for")
        from .cpu import SingleRank

        return SingleRank()


class CudaRecording:
    """A graph and its results, which hold their memory until it is shared."""

    def __init__(self, graph: torch.cuda.CUDAGraph, results: Outputs) -> None:
        self._graph = graph
        self._results = results

    def replay(self) -> Outputs:
        """See `Recording.replay`."""
        self._graph.replay()
        return self._results

    def begin(self) -> Callable[[], Outputs]:
        """See `Recording.begin`."""
        results = self.replay()
        return lambda: results

    def share(self) -> None:
        """See `Recording.share`."""
        self._results = tuple(None if one is None else _alias(one) for one in self._results)


class _Bytes:
    """Device memory by address, which torch reads through this protocol without owning it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        spans = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in spans)
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (extent * tensor.element_size(),),
            "typestr": "|u1",
            "version": 3,
        }


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that does not keep it."""
    if not tensor.numel():
        return tensor
    flat = torch.as_tensor(_Bytes(tensor), device=tensor.device).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


class CudaEvent:
    """An event of torch's, marked in the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()

    def record(self) -> None:
        """See `Event.record`."""
        self._event.record()

    def wait(self) -> None:
        """See `Event.wait`."""
        self._event.synchronize()

    def reached(self) -> bool:
        """See `Event.reached`."""
        is_reached: bool = self._event.query()
        return is_reached

    def join(self) -> None:
        """See `Event.join`."""
        self._event.wait()


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
