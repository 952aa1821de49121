"""Logit bias: a number added to single logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.sampling import LogitsProcessor

from .rows import SlotLists

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.component import Settings
    from camshaft.contracts.sampling import RowContext, SamplerSpec
    from camshaft.step import Admissions


class LogitBias(LogitsProcessor):
    """Adds the slot's values to the logits of the slot's ids."""

    def __init__(self, settings: Settings) -> None:
        del settings  # has none

    def attach(self, spec: SamplerSpec) -> None:
        """See `LogitsProcessor.attach`."""
        self._lists = SlotLists(spec.slots, torch.device(spec.device))

    def admit(self, admissions: Admissions) -> None:
        """See `LogitsProcessor.admit`."""
        for place, slot in enumerate(admissions.slots.tolist()):
            ids = admissions.bias_ids[place].astype(np.int64)
            self._lists.put(slot, ids, admissions.bias_values[place].view(np.float32))

    def wanted(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `slots` have a bias."""
        return self._lists.present[slots]

    def active(self, rows: RowContext) -> bool:
        """See `LogitsProcessor.active`."""
        return self._lists.active(rows)

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        index, ids, values = self._lists.entries(rows)
        logits.index_put_((index, ids), values, accumulate=True)
