"""Questions about the rows of a step that the host can answer, and lists of ids by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import RowContext


def rows_where(requests: NDArray[np.bool_], rows: RowContext) -> NDArray[np.int64]:
    """Return the rows of the requests for which `requests` [S] is true."""
    return np.flatnonzero(np.repeat(requests, np.diff(rows.host_rows)))


def row_slots(rows: RowContext) -> torch.Tensor:
    """Return int64 [Q], the slot of each row."""
    return rows.slots[rows.row_request]


class SlotLists:
    """Lists on the device, one for each slot that has any; entries are rows of equal columns.

    Attributes:
        present: [R] which slots have a list. Host.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.present = np.zeros(slots, dtype=np.bool_)
        self._device = device
        self._columns: dict[int, tuple[torch.Tensor, ...]] = {}
        self._lengths = np.zeros(slots, dtype=np.int64)

    def put(self, slot: int, *columns: NDArray[np.generic]) -> None:
        """Replace the list of `slot`; all columns have the same length, 0 for no list."""
        length = len(columns[0])
        self.present[slot] = length > 0
        self._lengths[slot] = length
        self._columns.pop(slot, None)
        if length:
            # a copy, since a view of the step's buffer would keep all of it alive
            self._columns[slot] = tuple(upload(one.copy(), self._device) for one in columns)

    def columns(self, slot: int) -> tuple[torch.Tensor, ...]:
        """Return the columns of a slot's list, or nothing without one."""
        return self._columns.get(slot, ())

    def active(self, rows: RowContext) -> bool:
        """Return whether a request of this step has a list."""
        return bool(self.present[rows.host_slots].any())

    def entries(self, rows: RowContext) -> tuple[torch.Tensor, ...]:
        """Return the row of each entry, int64 [E], and the columns [E, ...] of all rows."""
        owners = rows_where(self.present[rows.host_slots], rows)
        slots = np.repeat(rows.host_slots, np.diff(rows.host_rows))[owners]
        index = upload(np.repeat(owners, self._lengths[slots]), self._device)
        lists = [self._columns[slot] for slot in slots.tolist()]
        return index, *(torch.cat(column) for column in zip(*lists, strict=True))
