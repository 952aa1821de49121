"""What a plan of the `triton` backend consists of: runs of requests, and how a kernel cuts them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .device import staged

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionMeta
    from camshaft.kernel_launch import KernelLaunch

    from .cascade import Cascade
    from .launch import Blocks

Features = tuple[int, bool, bool, bool, int]
"""Window; whether there are a soft cap, sinks, and logs of the sums to be stored; elements of a
head that are rotated in the decode kernel, or -1 if `prepare` did all.
"""


@dataclass(slots=True)
class Requests:
    """A run of requests as the kernels see it, on the device.

    Attributes:
        query_start: [B + 1].
        context: [B].
        table: int32 [B, pages].
        count: B.
        table_row: Elements of the table from one request to the next.
    """

    query_start: torch.Tensor
    context: torch.Tensor
    table: torch.Tensor
    count: int
    table_row: int


@dataclass(slots=True)
class DecodeLaunches:
    """Kernels of a decode part.

    Attributes:
        attend: The decode kernel, with or without what `prepare` does.
        merge: For its results, if they are in pieces.
        prefixes: The cascade kernel, if there may be shared prefixes.
    """

    attend: KernelLaunch
    merge: KernelLaunch | None = None
    prefixes: KernelLaunch | None = None


@dataclass(slots=True)
class Decode:
    """Requests with few query tokens.

    Attributes:
        requests: Their lengths and pages.
        queries: Most query tokens of one of them, rounded up to a power of two.
        blocks: Of the decode kernel.
        splits: Into how many pieces their keys are cut.
        partial: float32 scratch for the results of the pieces, shared by all layers.
        sums: float32 scratch for their sums of exponentials.
        cascade: Work over shared prefixes, if there may be any.
        launches: What layers of the step with some features call; the first of them fills it in.
        merges: Whether the decode kernel merges the pieces.
        counters: int32 zeros for each request and kv head, if it has several to merge.
        prepares: Whether the decode kernel can do what `prepare` does.
        projected: [B, (H + 2 G) * D], between a `prepare` that left it to the decode kernel, and
            that.
    """

    requests: Requests
    queries: int
    blocks: Blocks
    splits: int
    partial: torch.Tensor | None
    sums: torch.Tensor | None
    cascade: Cascade | None = None
    launches: dict[Features, DecodeLaunches] = field(default_factory=dict)
    merges: bool = False
    counters: torch.Tensor | None = None
    prepares: bool = False
    projected: torch.Tensor | None = None

    def prefix_at(self, heads: int) -> int:
        """Return where in `sums` the cascade's results begin: behind all splits."""
        return self.requests.count * self.splits * heads


@dataclass(slots=True)
class Prefill:
    """Requests with many query tokens.

    Attributes:
        requests: Their lengths and pages.
        tiles: int32 [n, 2], of `query_tiles`.
        launches: As in `Decode`.
    """

    requests: Requests
    tiles: torch.Tensor
    launches: dict[Features, KernelLaunch] = field(default_factory=dict)


def requests_of(meta: AttentionMeta, first: int, last: int) -> Requests:
    """Return views of a run of a step's requests."""
    table = meta.page_table[first:last]
    return Requests(
        meta.query_start[first : last + 1],
        meta.context[first:last],
        table,
        last - first,
        table.stride(0),
    )


def prefill_of(meta: AttentionMeta, first: int, last: int, tiles: NDArray[np.integer]) -> Prefill:
    """Return a run of a step's requests with their tiles, see `query_tiles`, on the device."""
    device = meta.context.device
    sent = staged(tiles, device).to(device, non_blocking=True)
    return Prefill(requests_of(meta, first, last), sent)


Parts = list[Decode | Prefill]
