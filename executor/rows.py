"""Which rows of a step get logits, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.model import Handover
from camshaft.contracts.sampling import RowContext
from camshaft.contracts.scheduler import Rows

from .upload import Upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.step import Step

    from .state import DeviceState

    Int32 = NDArray[np.int32]


@dataclass(slots=True)
class LogitRows:
    """The rows of a step that get logits.

    Attributes:
        tokens: int64 [Q] token index of each row in the step.
        requests: [S] index into the step of each request with rows.
        context: For the sampler.
    """

    tokens: torch.Tensor
    requests: Int32
    context: RowContext


@dataclass(slots=True)
class HostRows:
    """The same on the host, before they are sent. S requests, Q rows.

    Attributes:
        requests: [S] index into the step.
        slots: [S].
        start: [S + 1] where a request's rows begin.
        row_request: [Q].
        offsets: [Q] place of a row among its request's rows.
        tokens: [Q].
        first: Number of the first array in the upload.
    """

    requests: Int32
    slots: Int32
    start: Int32
    row_request: Int32
    offsets: Int32
    tokens: Int32
    first: int = 0

    @classmethod
    def of(cls, step: Step) -> HostRows | None:
        """Return the rows of a step, or None if there are none."""
        counts = (step.rows == Rows.LAST).astype(np.int32)
        if len(step.pooling):
            counts[step.pooling > 0] = 0
        if step.drafts.any():
            counts = np.where(step.rows == Rows.DRAFTS, 1 + step.drafts, counts)
        requests = np.flatnonzero(counts).astype(np.int32)
        if not len(requests):
            return None
        counts = counts[requests]
        start = np.zeros(len(requests) + 1, dtype=np.int32)
        np.cumsum(counts, out=start[1:])
        row_request = np.repeat(np.arange(len(requests), dtype=np.int32), counts)
        offsets = np.arange(start[-1], dtype=np.int32) - start[row_request]
        first_token = step.starts[1:][requests] - counts
        tokens = first_token[row_request] + offsets
        return cls(requests, step.slots[requests], start, row_request, offsets, tokens)

    def add_to(self, upload: Upload) -> None:
        """Send these rows with the step."""
        self.first = upload.add(self.slots)
        for values in (self.start, self.row_request, self.offsets, self.tokens):
            upload.add(values)

    def on_device(self, upload: Upload, step: Step, state: DeviceState) -> LogitRows:
        """Return the rows with the tensors that were sent."""
        slots, start, row_request, offsets, tokens = (
            upload.tensor(self.first + place) for place in range(5)
        )
        context = RowContext(
            slots=slots,
            row_start=start,
            row_request=row_request,
            offsets=offsets,
            drafts=_drafts(step, state, self.requests, slots),
            host_slots=self.slots,
            host_rows=self.start,
        )
        return LogitRows(tokens, self.requests, context)


def picked(handover: Handover, places: torch.Tensor) -> Handover:
    """Return these rows of a hand-over."""
    hidden, residual = handover
    return Handover(hidden[places], None if residual is None else residual[places])


def sliced(handover: Handover, first: int, last: int) -> Handover:
    """Return the rows from `first` up to `last` of a hand-over."""
    hidden, residual = handover
    return Handover(hidden[first:last], None if residual is None else residual[first:last])


def rows_alone(step: Step, state: DeviceState) -> LogitRows | None:
    """Return the rows of a step, sent by themselves, or None if there are none."""
    rows = HostRows.of(step)
    if rows is None:
        return None
    upload = Upload()
    rows.add_to(upload)
    upload.send(state.device)
    return rows.on_device(upload, step, state)


def _drafts(step: Step, state: DeviceState, requests: Int32, slots: torch.Tensor) -> torch.Tensor:
    """Return the drafts that this step verifies: [S, most], padded with -1."""
    counts = step.drafts[requests]
    most = int(counts.max(initial=0))
    if not most:
        return torch.empty((len(requests), 0), dtype=torch.int64, device=state.device)
    drafts = state.drafts[slots, :most]
    beyond = torch.arange(most, device=state.device) >= state.to_device(counts)[:, None]
    return drafts.masked_fill(beyond, -1)
