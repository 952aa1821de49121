"""Which rows of a step get logits, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.sampling import RowContext
from ..contracts.scheduler import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..step import Step
    from .state import DeviceState


@dataclass(slots=True)
class LogitRows:
    """The rows of a step that get logits.

    Attributes:
        tokens: int64 [Q] token index of each row in the step.
        requests: [S] index into the step of each request with rows.
        context: For the sampler.
    """

    tokens: torch.Tensor
    requests: NDArray[np.int32]
    context: RowContext


def logit_rows(step: Step, state: DeviceState) -> LogitRows | None:
    """Return the rows that sample, or None when the step only fills pages."""
    counts = np.where(step.rows == Rows.DRAFTS, 1 + step.drafts, step.rows == Rows.LAST)
    counts = counts.astype(np.int32)
    requests = np.flatnonzero(counts).astype(np.int32)
    if not len(requests):
        return None
    per_request = counts[requests]
    start = np.zeros(len(requests) + 1, dtype=np.int32)
    np.cumsum(per_request, out=start[1:])
    row_request = np.repeat(np.arange(len(requests), dtype=np.int32), per_request)
    offsets = np.arange(start[-1], dtype=np.int32) - start[row_request]
    ends = step.starts[1:][requests]
    tokens = (ends - per_request)[row_request] + offsets
    host_slots = step.slots[requests]
    slots = state.to_device(host_slots)
    context = RowContext(
        slots=slots,
        row_start=state.to_device(start),
        row_request=state.to_device(row_request),
        offsets=state.to_device(offsets),
        drafts=_drafts(step, state, requests, slots),
        host_slots=host_slots,
        host_rows=start,
    )
    return LogitRows(state.to_device(tokens), requests, context)


def _drafts(
    step: Step, state: DeviceState, requests: NDArray[np.int32], slots: torch.Tensor
) -> torch.Tensor:
    """Return the drafts that this step verifies: [S, most], padded with -1."""
    counts = step.drafts[requests]
    most = int(counts.max(initial=0))
    if not most:
        return torch.empty((len(requests), 0), dtype=torch.int64, device=state.device)
    drafts = state.drafts[slots, :most]
    beyond = torch.arange(most, device=state.device) >= state.to_device(counts)[:, None]
    return drafts.masked_fill(beyond, -1)
