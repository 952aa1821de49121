"""Pages on their way between the device and the host, beside the steps.

Export: pages are gathered in the stream of the steps, behind the step that wrote them and before
one that may write over them, and copied to the host in the second stream. Load: pages that no step
touches are filled in the second stream, some layers at a time, so that a step can begin with the
first layers while later ones arrive.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from .host_pages import HostPages, PageShape
from .upload import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.hardware import Event, HardwareBackend

    from .groups import GroupMemory

_WORD = torch.int64


class Loading:
    """Pages that are being filled."""

    def __init__(self, ends: list[tuple[int, Event]]) -> None:
        """Follow a load.

        Args:
            ends: The number of leading layers that are there at each event.
        """
        self._ends = ends
        self._next = 0

    def join(self, layer: int) -> None:
        """Let the current stream wait until the group's layer number `layer` is there."""
        while self._next < len(self._ends):
            before = self._ends[self._next - 1][0] if self._next else 0
            if layer < before:
                return
            self._ends[self._next][1].join()
            self._next += 1

    def join_all(self) -> None:
        """Let the current stream wait until all layers are there."""
        self.join(self._ends[-1][0] - 1)

    def reached(self) -> bool:
        """Return whether all layers are there."""
        return self._ends[-1][1].reached()

    def wait(self) -> None:
        """Block the host until all layers are there."""
        self._ends[-1][1].wait()


class Exporting:
    """Pages that are being copied to the host; to be kept until they are there."""

    def __init__(self, event: Event, *held: torch.Tensor) -> None:
        self._event = event
        self._held = held  # the allocator does not know that the second stream reads them

    def reached(self) -> bool:
        """Return whether all is there."""
        return self._event.reached()

    def wait(self) -> None:
        """Block the host until all is there."""
        self._event.wait()


class PageTransfer:
    """Moves pages of one KV group. Called from the thread that launches steps."""

    def __init__(
        self, group: GroupMemory, hardware: HardwareBackend, *, ratio: int = 1, pieces: int = 4
    ) -> None:
        """Look at the memory of a group.

        Args:
            group: Laid out by `allocate_group`.
            hardware: The device, open.
            ratio: Kernel pages in a page of the manager.
            pieces: Runs of layers in which pages are filled.
        """
        self._hardware = hardware
        names = next(iter(group.fields.values()))
        self._grids = [
            _grid([fields[name] for fields in group.fields.values()], ratio) for name in names
        ]
        sizes = tuple(grid.shape[2] * grid.element_size() for grid in self._grids)
        layers = len(group.fields)
        self.shape = PageShape(layers, sizes)
        bounds = np.linspace(0, layers, min(pieces, layers) + 1).astype(int).tolist()
        self._runs = list(pairwise(bounds))

    def room(self, count: int) -> HostPages:
        """Return host memory for `count` pages."""
        memory = self._hardware.host_memory(count * self.shape.page_bytes)
        return HostPages(memory, self.shape, count)

    @torch.inference_mode()
    def export(self, pages: Sequence[int], host: HostPages) -> Exporting:
        """Start to copy pages to the host, as they are behind what was launched so far.

        Args:
            pages: Of the manager; any step that is launched later may write them.
            host: Room for exactly these pages.
        """
        assert len(pages) == host.count
        device = self._hardware.device
        ids = to_device(np.asarray(pages), device)
        staged = torch.empty(host.flat.shape, dtype=torch.uint8, device=device)
        for grid, piece in zip(self._grids, self.shape.pieces(staged, host.count), strict=True):
            _gather(grid, ids, piece.view(grid.dtype))
        gathered, done = self._hardware.event(), self._hardware.event()
        gathered.record()
        with self._hardware.stream():
            gathered.join()
            host.flat.copy_(staged, non_blocking=True)
            done.record()
        return Exporting(done, staged)

    @torch.inference_mode()
    def load(self, pages: Sequence[int], host: HostPages) -> Loading:
        """Start to fill pages from the host.

        Args:
            pages: Of the manager, each once. No step in flight touches them; one that does later
                joins the load first.
            host: What they get; not to be changed until they have it.
        """
        assert len(pages) == host.count
        hardware, ends = self._hardware, []
        with hardware.stream():
            ids = to_device(np.asarray(pages), hardware.device)
            for first, end in self._runs:
                for grid, piece in zip(self._grids, host.pieces, strict=True):
                    arrived = piece[first:end].to(hardware.device, non_blocking=True)
                    grid[first:end].index_copy_(1, ids, arrived.view(grid.dtype))
                event = hardware.event()
                event.record()
                ends.append((end, event))
        return Loading(ends)


def _gather(grid: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> None:
    """Copy pages of a grid [L, pages, words] to `out` [L, n, words]."""
    if grid.device.type != "cpu":
        torch.index_select(grid, 1, ids, out=out)
        return
    # a CPU walks through all layers at once word by word: a hundred times as long
    for layer, own in zip(grid, out, strict=True):
        torch.index_select(layer, 0, ids, out=own)


def _grid(layers: list[torch.Tensor], ratio: int) -> torch.Tensor:
    """Return one field of all layers as a view [L, manager pages, words].

    Words are int64 where sizes and places allow it, else bytes.
    """
    raw = [tensor.flatten().view(torch.uint8) for tensor in layers]
    page = ratio * raw[0].numel() // len(layers[0])
    starts = [one.storage_offset() for one in raw]
    stride = starts[1] - starts[0] if len(raw) > 1 else raw[0].numel()
    assert starts == [starts[0] + place * stride for place in range(len(raw))]
    assert len({one.untyped_storage().data_ptr() for one in raw}) == 1, "a group is one region"
    shape = (len(raw), raw[0].numel() // page, page)
    grid = raw[0].as_strided(shape, (stride, page, 1), starts[0])
    is_even = not any(one % _WORD.itemsize for one in (starts[0], stride, page))
    return grid.view(_WORD) if is_even else grid
