"""Logprobs of prompt tokens: rows of a step that are reported, and from which nothing is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.quant import StepContext
from camshaft.contracts.sampling import DeviceLogprobs

from .outputs import host_logprobs, logprob_tensors
from .rows import picked
from .upload import to_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.model import Handover, Model
    from camshaft.contracts.sampling import Sampler
    from camshaft.step import Int32, Step, StepOutput

_NAME = "read_"
LEAST_ROWS, MOST_ROWS = 16, 64
"""That go through the head at once; each takes some times its logits, 600 kB with 150,000 ids."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What a step reports of prompts.

    Attributes:
        owners: [L] index into the step of each one's request.
        tensors: On the device, or what of them came to the host; named as nothing else is.
    """

    owners: Int32
    tensors: dict[str, torch.Tensor]

    def tell(self, host: dict[str, NDArray[np.generic]], output: StepOutput) -> None:
        """Add to an output what came to the host; who has rows that are not finite is marked."""
        own = {
            name.removeprefix(_NAME): values
            for name, values in host.items()
            if name.startswith(_NAME)
        }
        output.reads = rows = host_logprobs(own, self.owners)
        assert rows is not None
        output.finite[rows.row[np.isnan(rows.chosen)]] = False


def read_prompts(
    step: Step, handover: Handover, model: Model, sampler: Sampler, slots: int
) -> Reads | None:
    """Return the logprobs that `Step.reads` asks for, or None if it asks for none.

    Args:
        step: L rows are read.
        handover: Behind the last layer, at least [T, C].
        model: Has the head.
        sampler: Knows how logprobs are reported.
        slots: Of the engine. So many rows have logits at once, from `LEAST_ROWS` to `MOST_ROWS`: a
            long chunk then needs little more memory than a step in which everybody decodes.
    """
    if not len(step.reads):
        return None
    device = handover.hidden.device
    places, tokens, wanted = to_device(np.ascontiguousarray(step.reads.T), str(device))
    most, size = int(step.reads[:, 2].max()), min(max(slots, LEAST_ROWS), MOST_ROWS)
    parts = []
    for first in range(0, len(places), size):
        part = slice(first, first + size)
        rows = picked(handover, places[part])
        context = StepContext(tokens=len(rows.hidden))
        logits = model.logits(model.norm(rows), context).float()
        parts.append(sampler.logprobs(logits, tokens[part], wanted[part], most))
    owners = np.searchsorted(step.starts, step.reads[:, 0], side="right").astype(np.int32) - 1
    tensors = logprob_tensors(_joined(parts))
    return Reads(owners, {_NAME + name: tensor for name, tensor in tensors.items()})


def _joined(parts: list[DeviceLogprobs]) -> DeviceLogprobs:
    """Return the reports of all rows, which are numbered through."""
    chosen = torch.cat([one.chosen for one in parts])
    return DeviceLogprobs(
        request=torch.arange(len(chosen), device=chosen.device),
        offset=torch.cat([one.offset for one in parts]),
        chosen=chosen,
        rank=torch.cat([one.rank for one in parts]),
        ids=torch.cat([one.ids for one in parts]),
        values=torch.cat([one.values for one in parts]),
    )
