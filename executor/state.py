"""Per-slot state on the device: exact lengths, last tokens and page tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .upload import to_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.step import Admissions, Step


class DeviceState:
    """What the device remembers about each slot between steps. R slots.

    Attributes:
        lengths: int64 [R] tokens whose keys and values are in pages, exact.
        offsets: int64 [R] by what positions exceed indices.
        last_token: int64 [R] newest token of each slot.
        drafts: int64 [R, K] draft tokens for the next step.
        tables: One int32 [R, kernel pages] for each KV group.
    """

    def __init__(
        self, slots: int, groups: int, max_pages: int, ratio: int, drafts: int, device: str
    ) -> None:
        """Allocate, with one more slot that stands for padding: its table holds null pages only.

        Args:
            slots: R.
            groups: KV groups.
            max_pages: Kernel pages of the longest sequence.
            ratio: Kernel pages in a manager page.
            drafts: K.
            device: Torch's name.
        """
        self.device = device
        self.ratio = ratio
        self.padding = slots
        slots += 1
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.offsets = torch.zeros(slots, dtype=torch.int64, device=device)
        self._shifted = np.zeros(slots, dtype=np.bool_)
        self.last_token = torch.zeros(slots, dtype=torch.int64, device=device)
        self.drafts = torch.full((slots, drafts), -1, dtype=torch.int64, device=device)
        width = -(-max_pages // ratio) * ratio
        self.tables = [
            torch.zeros((slots, width), dtype=torch.int32, device=device) for _ in range(groups)
        ]

    def to_device(self, values: NDArray[np.int32]) -> torch.Tensor:
        """Copy host integers to an int64 tensor."""
        return to_device(values, self.device)

    def update(self, step: Step) -> None:
        """Apply admissions and table writes of a step."""
        admitted = step.admissions
        if len(admitted):
            slots = self.to_device(admitted.slots)
            self.lengths[slots] = self.to_device(admitted.context)
            self._update_offsets(admitted, slots)
            for table in self.tables:
                table.index_fill_(0, slots, 0)  # to assign a number would wait for the device
        if len(step.write_group):
            self._write_tables(step)

    def shifts(self, slots: NDArray[np.int32]) -> bool:
        """Return whether positions of any of these slots differ from indices."""
        return bool(self._shifted[slots].any())

    def _update_offsets(self, admitted: Admissions, slots: torch.Tensor) -> None:
        """Take over offsets; nothing is sent as long as nobody has any."""
        before = self._shifted[admitted.slots]
        offsets = admitted.offsets
        if not len(offsets):
            if not before.any():
                return
            offsets = np.zeros_like(admitted.slots)
        self._shifted[admitted.slots] = offsets != 0
        self.offsets[slots] = self.to_device(offsets)

    def _write_tables(self, step: Step) -> None:
        """Scatter all table writes at once: no Python per page."""
        counts = np.diff(step.write_pages.offsets)
        slot = np.repeat(step.write_slot, counts)
        group = np.repeat(step.write_group, counts)
        within = np.arange(counts.sum(), dtype=np.int32) - np.repeat(
            step.write_pages.offsets[:-1], counts
        )
        column = np.repeat(step.write_first, counts) + within
        for index, table in enumerate(self.tables):
            here = group == index
            if not here.any():
                continue
            spread = np.arange(self.ratio, dtype=np.int32)
            rows = np.repeat(slot[here], self.ratio)
            columns = (column[here, None] * self.ratio + spread).reshape(-1)
            pages = (step.write_pages.values[here, None] * self.ratio + spread).reshape(-1)
            at = self.to_device(np.stack([rows, columns, pages]))
            table[at[0], at[1]] = at[2].to(torch.int32)
