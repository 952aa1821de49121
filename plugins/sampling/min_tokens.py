"""Stop ids cannot be chosen before the request has its least number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.sampling import LogitsProcessor

from .rows import SlotLists, row_slots
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.component import Settings
    from camshaft.contracts.sampling import RowContext, Sampled, SamplerSpec
    from camshaft.step import Admissions


class MinTokens(LogitsProcessor):
    """Forbids the slot's stop ids in the rows of output index below `min_tokens`.

    The output index of a row is known on the device. The host keeps a lower bound, one token a
    step, which tells when a slot is done with for good.
    """

    def __init__(self, settings: Settings) -> None:
        del settings  # has none

    def attach(self, spec: SamplerSpec) -> None:
        """See `LogitsProcessor.attach`."""
        self._device = torch.device(spec.device)
        self._lists = SlotLists(spec.slots, self._device)
        self._at_least = np.zeros(spec.slots, dtype=np.int64)
        self._minimum = np.zeros(spec.slots, dtype=np.int64)
        self._missing = torch.zeros(spec.slots, dtype=torch.int64, device=self._device)

    def admit(self, admissions: Admissions) -> None:
        """See `LogitsProcessor.admit`."""
        slots = admissions.slots
        missing = admissions.min_tokens.astype(np.int64) - admissions.produced
        self._at_least[slots] = admissions.produced
        self._minimum[slots] = admissions.min_tokens
        for place, slot in enumerate(slots.tolist()):
            ids = admissions.stops[place][: None if missing[place] > 0 else 0]
            self._lists.put(slot, ids.astype(np.int64))
        if (missing > 0).any():
            where = upload(slots.astype(np.int64), self._device)
            self._missing.index_copy_(0, where, upload(missing, self._device))

    def wanted(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `slots` may still have too few tokens."""
        return self._lists.present[slots] & (self._at_least[slots] < self._minimum[slots])

    def active(self, rows: RowContext) -> bool:
        """See `LogitsProcessor.active`."""
        return bool(self.wanted(rows.host_slots).any())

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        index, ids = self._lists.entries(rows)
        early = (rows.offsets < self._missing[row_slots(rows)])[index]
        ban = torch.zeros_like(early, dtype=logits.dtype).masked_fill_(early, -torch.inf)
        logits.index_put_((index, ids), ban, accumulate=True)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        """See `LogitsProcessor.observe`."""
        if not self.active(rows):
            return
        self._at_least[rows.host_slots] += 1
        self._missing.index_add_(0, rows.slots, -sampled.counts)
