"""The choice of a token: the best one, or a draw by inverse distribution function.

A row's probabilities become integers of 2**-44 of its best token's. Integer sums are exact, so that
the same logits give the same token whatever the batch, the order in which a device adds, and the
number of candidates that were sorted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .blocks import first_above, part_rows, row_sums
from .leading import Leading, solve
from .params import Method, RowParams
from .rows import row_slots, rows_where
from .upload import upload

if TYPE_CHECKING:
    from camshaft.contracts.sampling import RowContext

    from .params import SlotParams

UNIT = 2.0**44
"""Mass of a row's best token. Leaves room for 2**18 tokens as likely as the best below 2**62."""


def draw_rows(
    logits: torch.Tensor,
    best: torch.Tensor,
    tokens: torch.Tensor,
    rows: RowContext,
    params: SlotParams,
) -> None:
    """Replace the greedy `tokens` [Q] of the rows that draw theirs.

    Args:
        logits: float32 [Q, V], processed.
        best: float32 [Q], the maximum of each row.
        tokens: int64 [Q], changed in place.
        rows: Whose they are.
        params: Of their slots.
    """
    methods = params.method[rows.host_slots]
    for method in (Method.DRAW, Method.DRAW_LEADING):
        owners = rows_where(methods == method, rows)
        if not len(owners):
            continue
        index = upload(owners, tokens.device)
        own = params.of(row_slots(rows)[index], rows.offsets[index])
        has_min_p = bool(params.min_p[rows.host_slots].any())
        size = part_rows(logits)
        for start in range(0, len(owners), size):
            some = index[start : start + size]
            part = RowParams(*(one[start : start + size] for one in own))
            values, top = logits.index_select(0, some), best[some]
            if method is Method.DRAW:
                drawn = draw(values, top, part, has_min_p=has_min_p)
            else:
                largest = int(params.top_k[rows.host_slots[methods == method]].max())
                drawn = draw_leading(values, top, part, largest)
            tokens.index_copy_(0, some, drawn)


def draw(
    logits: torch.Tensor, best: torch.Tensor, own: RowParams, *, has_min_p: bool
) -> torch.Tensor:
    """Draw from all tokens, in the order of their ids.

    Args:
        logits: float32 [N, V].
        best: float32 [N], the maximum of each row.
        own: Their parameters.
        has_min_p: Whether any row has a min-p; saves two passes if not.
    """
    odds = _odds(logits, best, own)
    if has_min_p:
        odds.masked_fill_(odds < own.min_p.unsqueeze(1), 0)
    return first_above(odds.mul_(UNIT).to(torch.int64), own.uniform)


def draw_leading(
    logits: torch.Tensor, best: torch.Tensor, own: RowParams, largest_k: int
) -> torch.Tensor:
    """Draw from the tokens that top-k and then top-p leave, the best first.

    Args:
        logits: float32 [N, V].
        best: float32 [N], the maximum of each row.
        own: Their parameters.
        largest_k: No row has a larger top-k, but where it is off.
    """
    odds = _odds(logits, best, own)
    mass = row_sums((odds * UNIT).to(torch.int64))
    drawn = torch.zeros_like(own.top_k)

    def attempt(some: Leading, index: torch.Tensor | None) -> torch.Tensor:
        if index is None:
            tokens, solved = _draw_among(some, odds.gather(1, some.ids), mass, own)
            drawn.copy_(tokens)
            return solved
        part = RowParams(*(one[index] for one in own))
        likely = odds.index_select(0, index).gather(1, some.ids)
        tokens, solved = _draw_among(some, likely, mass[index], part)
        drawn.index_copy_(0, index, tokens)
        return solved

    solve(logits, largest_k, attempt)
    return drawn


def _draw_among(
    some: Leading, odds: torch.Tensor, total: torch.Tensor, own: RowParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from candidates; say for which rows these were enough to decide what is kept.

    Args:
        some: The candidates.
        odds: float32 [N, width], theirs.
        total: int64 [N], mass of the whole row.
        own: Parameters of the rows.
    """
    width = odds.shape[1]
    mass = (odds * UNIT).to(torch.int64)
    running = mass.cumsum(dim=1)
    within_k = running.gather(1, own.top_k.clamp(max=width).unsqueeze(1) - 1).squeeze(1)
    # a top-k of `width` or more is off, because there are more candidates than any top-k
    total = torch.where(own.top_k < width, within_k, total)
    limit = (own.top_p.to(torch.float64) * total).to(torch.int64).clamp_(min=1)
    before = running - mass
    place = torch.arange(width, device=mass.device)
    kept = (before < limit.unsqueeze(1)) & (place < own.top_k.unsqueeze(1)) & (mass > 0)
    solved = kept.sum(dim=1) <= some.sure
    kept &= odds >= own.min_p.unsqueeze(1)
    at = first_above(mass.masked_fill_(~kept, 0), own.uniform)
    return some.ids.gather(1, at.unsqueeze(1)).squeeze(1), solved


def _odds(logits: torch.Tensor, best: torch.Tensor, own: RowParams) -> torch.Tensor:
    """Return each token's probability as a part of the best token's, which is exactly 1.

    The maximum is taken off before the scaling, so that no temperature overflows. Powers of two
    are three times as fast as `exp` on a CPU.
    """
    scale = math.log2(math.e) / own.temperature
    return (logits - best.unsqueeze(1)).mul_(scale.unsqueeze(1)).exp2_()
