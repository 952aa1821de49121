"""Only the allowed ids can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.sampling import LogitsProcessor

from .rows import SlotLists, rows_where
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.component import Settings
    from camshaft.contracts.sampling import RowContext, SamplerSpec
    from camshaft.step import Admissions


class AllowedIds(LogitsProcessor):
    """Sets every logit to minus infinity but those of the slot's list."""

    def __init__(self, settings: Settings) -> None:
        del settings  # has none

    def attach(self, spec: SamplerSpec) -> None:
        """See `LogitsProcessor.attach`."""
        self._device = torch.device(spec.device)
        self._lists = SlotLists(spec.slots, self._device)

    def admit(self, admissions: Admissions) -> None:
        """See `LogitsProcessor.admit`."""
        for place, slot in enumerate(admissions.slots.tolist()):
            self._lists.put(slot, admissions.allowed[place].astype(np.int64))

    def wanted(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `slots` have a list."""
        return self._lists.present[slots]

    def active(self, rows: RowContext) -> bool:
        """See `LogitsProcessor.active`."""
        return self._lists.active(rows)

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        index, ids = self._lists.entries(rows)
        owners = rows_where(self._lists.present[rows.host_slots], rows)
        kept = logits[index, ids]
        logits.index_fill_(0, upload(owners, self._device), -torch.inf)
        logits.index_put_((index, ids), kept)
