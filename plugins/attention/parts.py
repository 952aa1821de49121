"""What a plan of the `triton` backend consists of: runs of requests, and how a kernel cuts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from camshaft.contracts.attention import AttentionMeta

    from .cascade import Cascade


@dataclass(slots=True)
class Requests:
    """A run of requests as the kernels see it, on the device.

    Attributes:
        query_start: [B + 1].
        context: [B].
        table: int32 [B, pages].
    """

    query_start: torch.Tensor
    context: torch.Tensor
    table: torch.Tensor


@dataclass(slots=True)
class Decode:
    """Requests with few query tokens.

    Attributes:
        requests: Their lengths and pages.
        queries: Most query tokens of one of them, rounded up to a power of two.
        splits: Into how many pieces their keys are cut.
        partial: float32 scratch for the results of the pieces, shared by all layers.
        sums: float32 scratch for their sums of exponentials.
        cascade: Work over shared prefixes, if there may be any.
    """

    requests: Requests
    queries: int
    splits: int
    partial: torch.Tensor | None
    sums: torch.Tensor | None
    cascade: Cascade | None = None

    def prefix_at(self, heads: int) -> int:
        """Return where in `sums` the cascade's results begin: behind all splits."""
        return len(self.requests.context) * self.splits * heads


@dataclass(slots=True)
class Prefill:
    """Requests with many query tokens.

    Attributes:
        requests: Their lengths and pages.
        tiles: int32 [n, 2], of `query_tiles`.
    """

    requests: Requests
    tiles: torch.Tensor


def requests_of(meta: AttentionMeta, first: int, last: int) -> Requests:
    """Return views of a run of a step's requests."""
    return Requests(
        meta.query_start[first : last + 1], meta.context[first:last], meta.page_table[first:last]
    )


Parts = list[Decode | Prefill]
