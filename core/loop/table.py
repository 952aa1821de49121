"""The counts of requests as columns, a row for each slot: a step takes a few array operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import Columns
    from .state import RequestState

    Int64 = NDArray[np.int64]

# places in a row; `RequestState` says what they count
UID, COMPUTED, KNOWN, LAST_KNOWN, PENDING, GRANTED = range(6)
COMMITTED, IN_FLIGHT, LEFT, STARTED, ON_DEVICE, NEEDS_HOST, DUE = range(6, 13)
WIDTH = 13


class SlotTable:
    """The rows of all requests that have a slot; R slots.

    A request reads and writes its own row through its attributes. Here are the same numbers as
    columns [R], to be indexed by slots. Rows of slots that nobody has are 0.

    Attributes:
        states: [R] who has a slot.
        order: Slots that somebody has, in order of admission.
    """

    def __init__(self, slots: int) -> None:
        self._counts = np.zeros((WIDTH, slots), dtype=np.int64)
        columns: list[Int64] = list(self._counts)
        self.uid, self.computed, self.known, self.last_known = columns[:4]
        self.pending, self.granted, self.committed, self.in_flight = columns[4:8]
        self.left, self.started, self.on_device, self.needs_host, self.due = columns[8:]
        self.states: list[RequestState | None] = [None] * slots
        self.order = np.zeros(0, dtype=np.int64)

    def seat(self, state: RequestState) -> None:
        """Move a request's counts into the row of the slot that it got."""
        row = self._counts[:, state.slot]
        row[:] = state.row
        state.row = row
        self.states[state.slot] = state
        self.order = np.append(self.order, state.slot)

    def vacate(self, state: RequestState) -> None:
        """Give a request its counts to keep; its slot's row is empty."""
        state.row = state.row.copy()
        self._counts[:, state.slot] = 0
        self.states[state.slot] = None
        self.order = self.order[self.order != state.slot]

    def at(self, slots: Int64) -> list[RequestState]:
        """Return who has these slots."""
        return [state for slot in slots.tolist() if (state := self.states[slot]) is not None]

    def read(self, slots: Int64) -> Int64:
        """Return how many tokens of each request the host knows: prompt and settled outputs."""
        known: Int64 = self.last_known[slots] + 1 - self.left[slots]
        return known

    def advance(self, columns: Columns) -> None:
        """Count a launched step; the slots of `columns` are those of requests in this table."""
        slots, written, samples = columns.slots, columns.written, columns.samples
        known = self.known[slots] + samples * (1 + columns.drafts)
        self.in_flight[slots] += 1
        self.computed[slots] = written
        self.known[slots] = known
        self.pending[slots] = np.minimum(known, self.last_known[slots]) - written
        self.on_device[slots] |= samples
