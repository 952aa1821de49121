"""The choice of a token: the best one, or a draw by inverse distribution function.

A row's probabilities become integers of 2**-44 of its best token's, and are summed in the order of
ids. Integer sums are exact, so that the same logits give the same token whatever the batch, the
order in which a device adds, and the way in which the kept tokens were found.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .blocks import first_above, part_rows, row_sums
from .leading import Leading, leading
from .params import Method, RowParams
from .rows import row_slots, rows_where
from .select import keep_best, sort_keys
from .upload import upload

if TYPE_CHECKING:
    from camshaft.contracts.sampling import RowContext

    from .params import Cuts, SlotParams

UNIT = 2.0**44
"""Mass of a row's best token. Leaves room for 2**18 tokens as likely as the best below 2**62."""

CANDIDATES = 128
"""Tokens that a CPU tries first; 0 tries none. In the median step of a 135M model at temperature 1,
top-p 0.9 keeps 93 tokens and 0.95 keeps 344; at lower temperatures there are fewer."""


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
    if not methods.any():  # all greedy
        return
    for method in (Method.DRAW, Method.DRAW_CUT):
        owners = rows_where(methods == method, rows)
        if not len(owners):
            continue
        index = upload(owners, tokens.device)
        own = params.of(row_slots(rows)[index], rows.offsets[index])
        cuts = params.cuts(rows.host_slots[methods == method])
        size = part_rows(logits)
        for start in range(0, len(owners), size):
            some = index[start : start + size]
            part = RowParams(*(one[start : start + size] for one in own))
            values, top = logits.index_select(0, some), best[some]
            if method is Method.DRAW:
                drawn = draw(values, top, part, cuts)
            else:
                drawn = draw_cut(values, top, part, cuts)
            tokens.index_copy_(0, some, drawn)


def draw(logits: torch.Tensor, best: torch.Tensor, own: RowParams, cuts: Cuts) -> torch.Tensor:
    """Draw from all tokens.

    Args:
        logits: float32 [N, V].
        best: float32 [N], the maximum of each row.
        own: Their parameters.
        cuts: The limits that these rows have.
    """
    odds = _odds(logits, best, own)
    if cuts.min_p:
        odds.masked_fill_(odds < own.min_p.unsqueeze(1), 0)
    return first_above(odds.mul_(UNIT).to(torch.int64), own.uniform)


def draw_cut(logits: torch.Tensor, best: torch.Tensor, own: RowParams, cuts: Cuts) -> torch.Tensor:
    """Draw from the tokens that top-k, then top-p, then min-p leave. Arguments as of `draw`.

    A CPU first tries with a few candidates, which mostly do. Asking whether they did would make the
    host wait for an accelerator.
    """
    odds = _odds(logits, best, own)
    mass = (odds * UNIT).to(torch.int64)
    if not (logits.is_cpu and CANDIDATES):
        return _draw_of_all(logits, odds, mass, own, cuts)
    some = leading(logits, CANDIDATES)
    drawn, solved = _draw_of_some(some, odds.gather(1, some.ids), row_sums(mass), own)
    solved &= (own.top_k < CANDIDATES) | (own.top_k == logits.shape[1])
    left = (~solved).nonzero().squeeze(1)
    if len(left):
        part = RowParams(*(one[left] for one in own))
        logits, odds, mass = (one.index_select(0, left) for one in (logits, odds, mass))
        drawn.index_copy_(0, left, _draw_of_all(logits, odds, mass, part, cuts))
    return drawn


def _draw_of_all(
    logits: torch.Tensor, odds: torch.Tensor, mass: torch.Tensor, own: RowParams, cuts: Cuts
) -> torch.Tensor:
    """Draw, given odds and mass [N, V] of every token. Overwrites `mass`."""
    keys = sort_keys(logits)
    if cuts.top_k:
        ones = torch.ones((1, 1), dtype=torch.int64, device=mass.device).expand(mass.shape)
        keep_best(mass, keys, ones, own.top_k)
    if cuts.top_p:
        keep_best(mass, keys, mass, _limit(own.top_p, row_sums(mass)))
    if cuts.min_p:
        mass.masked_fill_(odds < own.min_p.unsqueeze(1), 0)
    return first_above(mass, own.uniform)


def _draw_of_some(
    some: Leading, odds: torch.Tensor, total: torch.Tensor, own: RowParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from candidates; say for which rows these are known to hold all that is kept.

    Args:
        some: The candidates.
        odds: float32 [N, width], theirs.
        total: int64 [N], mass of the whole row.
        own: Parameters of the rows.
    """
    width = odds.shape[1]
    mass = (odds * UNIT).to(torch.int64)
    running = mass.cumsum(dim=1)
    of_k = running.gather(1, own.top_k.clamp(max=width).unsqueeze(1) - 1).squeeze(1)
    limit = _limit(own.top_p, torch.where(own.top_k < width, of_k, total))
    place = torch.arange(width, device=mass.device)
    kept = (running - mass < limit.unsqueeze(1)) & (place < own.top_k.unsqueeze(1)) & (mass > 0)
    solved = kept.sum(dim=1) <= some.sure
    kept &= odds >= own.min_p.unsqueeze(1)
    # back to the order of ids, in which all draws are made
    ids, order = some.ids.sort(dim=1)
    at = first_above(mass.masked_fill_(~kept, 0).gather(1, order), own.uniform)
    return ids.gather(1, at.unsqueeze(1)).squeeze(1), solved


def _limit(top_p: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return the mass that the kept tokens must have, int64 [N], at least 1."""
    share = (top_p.to(torch.float64) * total).to(torch.int64)
    return torch.where(top_p < 1, share, total).clamp_(min=1)


def _odds(logits: torch.Tensor, best: torch.Tensor, own: RowParams) -> torch.Tensor:
    """Return each token's probability as a part of the best token's, which is exactly 1.

    The maximum is taken off before the scaling, so that no temperature overflows. Powers of two
    are three times as fast as `exp` on a CPU.
    """
    scale = math.log2(math.e) / own.temperature
    return (logits - best.unsqueeze(1)).mul_(scale.unsqueeze(1)).exp2_()
