"""Whole pages in host memory, in the order in which the device sends and fetches them.

A batch of n pages of a group with L layers is for each field of the layout an array [L, n, bytes]:
so a run of layers of all pages is one piece of memory, which can be fetched while earlier layers
compute. A single page, as a store keeps it, is the same without n: for each field [L, bytes].
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray


class PageShape(NamedTuple):
    """What a page is made of.

    Attributes:
        layers: L.
        field_bytes: Of each field, in one layer.
    """

    layers: int
    field_bytes: tuple[int, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all its layers."""
        return self.layers * sum(self.field_bytes)

    def pieces(self, flat: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Return the fields of `count` pages in uint8 [count * page_bytes]: [L, count, bytes]."""
        shapes = [(self.layers, count, size) for size in self.field_bytes]
        parts = flat.split([prod(shape) for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class HostPages:
    """A batch of pages. Pages may be read and written on any thread, each by one at a time."""

    def __init__(self, memory: torch.Tensor, shape: PageShape, count: int) -> None:
        """Lay pages into memory.

        Args:
            memory: uint8 on the host, of at least the size of the pages.
            shape: Of a page.
            count: How many.
        """
        self.shape = shape
        self.count = count
        self._memory = memory
        self.flat = memory[: count * shape.page_bytes]
        self.pieces = shape.pieces(self.flat, count)
        self._arrays: list[NDArray[np.uint8]] = [piece.numpy() for piece in self.pieces]

    def first(self, count: int) -> HostPages:
        """Return room for fewer pages in the same memory. What these held is void."""
        assert count <= self.count
        return HostPages(self._memory, self.shape, count)

    def read(self, place: int, into: memoryview) -> None:
        """Copy a page out, as one run of bytes."""
        for whole, mine in self._parts(place, into):
            np.copyto(whole, mine)

    def write(self, place: int, page: memoryview) -> None:
        """Copy a page in."""
        for whole, mine in self._parts(place, page):
            np.copyto(mine, whole)

    def _parts(
        self, place: int, page: memoryview
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Yield each field [L, bytes] of a page, and its place in the batch."""
        whole, at = np.frombuffer(page, dtype=np.uint8), 0
        for array in self._arrays:
            layers, _, size = array.shape
            yield whole[at : at + layers * size].reshape(layers, size), array[:, place]
            at += layers * size
