"""Verification of drafts: a draft is accepted where it is what the request itself chooses.

Each row's choice is made with the random number of its own output index, so that the accepted
tokens are those that would have been chosen one by one, whatever was drafted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from camshaft.contracts.sampling import RowContext


def verify(
    chosen: torch.Tensor, finite: torch.Tensor, rows: RowContext
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens int64 [S, 1 + K], counts int64 [S] and finite bool [S].

    Args:
        chosen: int64 [Q], the choice of each row.
        finite: bool [Q], whether the choice had a ground.
        rows: Whose the rows are.
    """
    most = rows.drafts.shape[1]
    if not most:
        return chosen.unsqueeze(1), torch.ones_like(chosen), finite
    place = torch.arange(1 + most, device=chosen.device)
    at = rows.row_start[:-1].unsqueeze(1) + place
    exists = at < rows.row_start[1:].unsqueeze(1)
    at = at.clamp(max=len(chosen) - 1)
    tokens = chosen[at]
    # draft i stands between row i, which has to choose it, and row i + 1, which it leads to
    meets = (tokens[:, :-1] == rows.drafts) & exists[:, 1:]
    counts = 1 + meets.to(torch.int64).cumprod(dim=1).sum(dim=1)
    counted = place < counts.unsqueeze(1)
    sound = (finite[at] | ~counted).all(dim=1)
    tokens = tokens.masked_fill(~(counted & sound.unsqueeze(1)), 0)
    return tokens, torch.where(sound, counts, 1), sound
