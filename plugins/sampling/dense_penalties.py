"""Penalties by a kernel over whole rows, for devices that run Triton.

It needs nothing of the host, so that it can be recorded: no list of the ids that were seen, only
the count of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .kernels.penalties import count_tokens, penalise
from .penalties import Penalties
from .rows import row_slots

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import RowContext, Sampled


class DensePenalties(Penalties):
    """See `Penalties`. Keeps no logs."""

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        assert self._cells is not None
        penalise(logits, logits, row_slots(rows), rows, self._strength, self._cells)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        """See `LogitsProcessor.observe`."""
        if self.active(rows):
            assert self._cells is not None
            count_tokens(sampled.tokens, sampled.counts, rows.slots, self._cells)

    def penalised(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return float32 [B, V] of the rows of `slots`, int64 [B], once a request wanted any."""
        assert self._cells is not None
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        penalise(logits, out, slots, None, self._strength, self._cells)
        return out

    def count(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """Count a token, int64 [B], of each of `slots`."""
        assert self._cells is not None
        count_tokens(tokens.unsqueeze(1), None, slots, self._cells)

    def _start_logs(self, slots: NDArray[np.int64], outputs: list[torch.Tensor]) -> None:
        del slots, outputs  # cells do
