"""HardwareBackend: one device, its memory and its executor. Small on purpose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from ..facts import DeviceFacts


class MemoryReport(NamedTuple):
    """Bytes of device memory that this process may count on.

    Attributes:
        total: Limit of the device, or of the container.
        free: Not in use by anyone.
    """

    total: int
    free: int


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None:
        """Mark now in the current stream."""
        ...

    def wait(self) -> None:
        """Block the host until the mark was reached."""
        ...

    def reached(self) -> bool:
        """Return whether the mark was reached, without waiting. True where nothing was marked."""
        ...

    def join(self) -> None:
        """Let what is put into the current stream from now on wait for the mark; not the host."""
        ...


class Communicator(Protocol):
    """Collectives among the ranks of one replica. Tensors are reduced and filled in place."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over ranks."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Join along the last dimension, in rank order."""
        ...

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copy from one rank to all."""
        ...


Outputs = tuple["torch.Tensor | None", ...]


class Recording(Protocol):
    """A function that was recorded. All recordings of a lane replay one after the other."""

    def replay(self) -> Outputs:
        """Run it on what its buffers hold now; return its results, the same tensors each time."""
        ...

    def begin(self) -> Callable[[], Outputs]:
        """Start to run it; the call that is returned does the rest and returns the results.

        A device without queues may compute beside the host until then: nothing else may touch its
        tensors.
        """
        ...

    def share(self) -> None:
        """Let recordings that are made later use the memory of the results.

        Results are then good until the next replay of any of those.
        """
        ...


class HardwareBackend(ABC):
    """A device. Constructed as `Backend(settings)`, light: nothing is touched before `open`.

    Attributes:
        device: The `torch.device` name that tensors are made on.
        exact_sizes: Up to so many requests, recorded steps are made for each number: rows that pad
            a step cost about as much as others.
    """

    device: str
    exact_sizes: int = 0

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Return what the device is, without opening it. May probe once; cached after that."""

    @abstractmethod
    def open(self) -> None:
        """Take the device: set threads, contexts, allocators. Called once, before tensors."""

    @abstractmethod
    def close(self) -> None:
        """Give the device back."""

    @abstractmethod
    def memory(self) -> MemoryReport:
        """Return memory as it is now."""

    def notes(self) -> list[str]:
        """Return what was chosen here, and why, in words: `engine doctor` prints them."""
        return []

    def peak(self) -> int:
        """Return the bytes that tensors took on top of those at the last call, at their most.

        0 where that is not known, which is the default.
        """
        return 0

    @abstractmethod
    def allocate(self, size: int) -> torch.Tensor:
        """Return a zeroed uint8 region of `size` bytes, aligned to 64.

        Raises:
            DeviceError: It does not fit; says how much is free.
        """

    def trim(self) -> None:  # noqa: B027 - optional
        """Give memory that is free here, and kept for later, back to the device."""

    @abstractmethod
    def copy_pages(
        self, fields: Sequence[torch.Tensor], source: Sequence[int], target: Sequence[int]
    ) -> None:
        """Copy page `source[i]` to `target[i]` in each tensor of shape [N, ...], in stream order.

        No page is both a source and a target of one call.
        """

    @abstractmethod
    def event(self) -> Event:
        """Return a new event."""

    @abstractmethod
    def stream(self, number: int = 0) -> AbstractContextManager[Any]:
        """Return a context in which work goes to another stream than usual, the same one on a CPU.

        Each number names one of its own. Number 0 is for copies.
        """

    @abstractmethod
    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy to host memory; good after an event recorded behind it was waited for."""

    @abstractmethod
    def host_memory(self, size: int) -> torch.Tensor:
        """Return `size` bytes of host memory, uint8, which copies to and from the device like best.

        Page-locked where that is what the device likes. Ask for powers of two: less is not saved.
        May be called from any thread.
        """

    @abstractmethod
    def capture(self, function: Callable[[], Outputs], lane: int = 0) -> Recording:
        """Record a function over fixed buffers, after running it to warm up.

        What the function returned when it last ran are the results that a replay fills. Recordings
        of different lanes share no memory, so they may be replayed side by side. Devices without
        graphs run the function at each replay. Called only if every part allows it.
        """

    @abstractmethod
    def communicator(self, rank: int, size: int) -> Communicator:
        """Return the communicator of a replica with `size` ranks.

        Raises:
            DeviceError: The device does not do that many.
        """
