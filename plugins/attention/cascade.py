"""Who attends over which part of a shared prefix: the work list of the cascade kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .device import staged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.attention import SharedPrefixes

    Int32 = NDArray[np.int32]


@dataclass(slots=True)
class Work:
    """Tiles of requests over a prefix, cut into pieces, evenly over the programs. All int32.

    Attributes:
        members: [M] requests in groups, those of a tile in a row.
        items: [I, 5] a tile and a piece of its prefix: first member, members, first key, end of
            keys, first row of the results.
        runs: [programs + 1] where the items of each program begin.
        requests: [R, 4] of each request: shared tokens; its row in the results of the first piece,
            rows from there to the next piece, pieces.
    """

    members: Int32
    items: Int32
    runs: Int32
    requests: Int32


def work_of(shared: SharedPrefixes, tile: int, keys: int, programs: int) -> Work:
    """Cut prefixes into pieces; what is left over of a prefix, each request reads for itself.

    Args:
        shared: Groups.
        tile: Most requests of a tile.
        keys: A piece is a multiple of them.
        programs: They get the same number of keys, within one multiple, and members do not count:
            a tile is computed whole.
    """
    members = np.argsort(shared.group, kind="stable")[np.count_nonzero(shared.group < 0) :]
    count = np.bincount(shared.group[members], minlength=len(shared.tokens))
    tiles = -(-count // tile)
    group = np.repeat(np.arange(len(count)), tiles)
    skipped = (np.arange(len(group)) - (np.cumsum(tiles) - tiles)[group]) * tile
    first = (np.cumsum(count) - count)[group] + skipped
    size = np.minimum(tile, count[group] - skipped)

    # |tile 0      |tile 1   |tile 2  |   a row of keys, in units of `keys`
    # |program 0  |program 1  |program 2  |   an item lies between two neighbouring cuts
    units = shared.tokens[group] // keys
    start = np.cumsum(units) - units
    bounds = int(units.sum()) * np.arange(programs + 1) // programs
    cuts = np.unique(np.concatenate([start, bounds]))
    low, high = cuts[:-1], cuts[1:]
    of = np.searchsorted(start + units, low, side="right")
    row = np.cumsum(size[of]) - size[of]
    items = [first[of], size[of], (low - start[of]) * keys, (high - start[of]) * keys, row]

    requests = np.zeros((len(shared.group), 4), dtype=np.int32)
    mine = np.repeat(np.arange(len(group)), size)
    piece = np.searchsorted(of, mine)  # the first item of a tile; none if its prefix is too short
    at = np.append(row, 0)[piece] + np.arange(len(members)) - first[mine]
    pieces = np.bincount(of, minlength=len(group))
    requests[members] = np.stack([units[mine] * keys, at, size[mine], pieces[mine]], axis=1)
    return Work(
        members.astype(np.int32),
        np.stack(items, axis=1).astype(np.int32),
        np.searchsorted(low, bounds).astype(np.int32),
        requests,
    )


class Cascade:
    """A work list on the device, in buffers that a graph may know.

    Attributes:
        programs: Of a kv head.
        runs: int32 [programs + 1], and so on as in `Work`, with room for `requests`.
        items: See `Work`.
        members: See `Work`.
        requests: See `Work`.
        rows: Most rows of the results, each of H heads.
    """

    def __init__(
        self, requests: int, tile: int, keys: int, programs: int, device: torch.device
    ) -> None:
        """Allocate buffers; there is no work yet.

        Args:
            requests: The most.
            tile: See `work_of`, as the next two.
            keys: In a tile of keys.
            programs: Of a kv head.
            device: Of the buffers.
        """
        self.tile, self.keys, self.programs = tile, keys, programs
        items = requests + programs  # each tile begins one, and each program
        self.rows = requests + programs * tile
        self._sizes = [programs + 1, items * 5, requests, requests * 4]
        self._buffer = torch.zeros(sum(self._sizes), dtype=torch.int32, device=device)
        self.runs, self.items, self.members, self.requests = self._buffer.split(self._sizes)

    def load(self, shared: SharedPrefixes) -> None:
        """Replace the work; kernels that are queued before still see the old."""
        work = work_of(shared, self.tile, self.keys, self.programs)
        joined = np.zeros(len(self._buffer), dtype=np.int32)
        at = 0
        arrays = (work.runs, work.items, work.members, work.requests)
        for values, size in zip(arrays, self._sizes, strict=True):
            joined[at : at + values.size] = values.reshape(-1)
            at += size
        self._buffer.copy_(staged(joined, self._buffer.device), non_blocking=True)
