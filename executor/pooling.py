"""Vectors of texts: what the model knows at each token of a prompt, made one.

The sum of a prompt that comes in chunks waits in its slot, in float64: chunks then change a mean by
less than it is rounded to. A prompt begins anew where its context is 0, so nothing has to be told
when a slot changes hands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.scheduler import Rows
from camshaft.request import POOLINGS
from camshaft.step import PooledRows

from .rows import sliced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.model import Handover, Model
    from camshaft.step import Int32, Step, StepOutput

_NAME = "pooled"
_MEAN, _LAST, _CLS = (POOLINGS.index(one) for one in ("mean", "last", "cls"))


@dataclass(frozen=True, slots=True)
class Pooled:
    """Vectors that a step completes.

    Attributes:
        owners: [P] index into the step of each one's request.
        tensors: On the device, or what of them came to the host; named as nothing else is.
    """

    owners: Int32
    tensors: dict[str, torch.Tensor]

    def tell(self, host: dict[str, NDArray[np.generic]], output: StepOutput) -> None:
        """Add to an output what came to the host; what is not finite is marked."""
        values = host[_NAME].astype(np.float32)
        output.pooled = PooledRows(self.owners, values)
        output.counts[self.owners] = 1
        output.finite[self.owners] = np.isfinite(values).all(axis=1)


class Pooler:
    """Makes vectors of prompts, which may come in several steps."""

    def __init__(self, slots: int, device: str) -> None:
        """Begin without memory; the first pooled request shows how wide it is.

        Args:
            slots: Of the executor.
            device: Torch's name.
        """
        self._slots = slots
        self._device = device
        self._begun: torch.Tensor | None = None  # float64 [slots, C]

    def pool(self, step: Step, handover: Handover, model: Model) -> Pooled | None:
        """Take in what a step computed, and return the vectors that it completes, or None.

        Args:
            step: With or without pooled requests.
            handover: Behind the last layer, at least [T, C].
            model: Has the norm before the head.
        """
        if not len(step.pooling):
            return None
        done, vectors = [], []
        for at in step.pooling.nonzero()[0].tolist():
            vector = self._take(step, at, handover, model)
            if step.rows[at] == Rows.LAST:
                done.append(at)
                vectors.append(vector)
        if not vectors:
            return None
        return Pooled(np.array(done, dtype=np.int32), {_NAME: torch.stack(vectors).float()})

    def _take(self, step: Step, at: int, handover: Handover, model: Model) -> torch.Tensor:
        """Return the vector [C] of a request as far as it was computed, and keep it if needed."""
        kind, ends = step.pooling[at], step.rows[at] == Rows.LAST
        first, last = step.starts[at : at + 2].tolist()
        before, slot = int(step.context[at]), int(step.slots[at])
        if kind == _LAST or (kind == _CLS and before == 0):
            row = last - 1 if kind == _LAST else first
            vector = self._rows(handover, model, row, row + 1)[0]
        elif kind == _CLS:
            vector = self._memory(model)[slot]
        else:
            vector = self._rows(handover, model, first, last).sum(0)
            if before:
                vector = vector + self._memory(model)[slot]
        if not ends and kind != _LAST:
            self._memory(model)[slot] = vector
        return vector / (before + last - first) if ends and kind == _MEAN else vector

    @staticmethod
    def _rows(handover: Handover, model: Model, first: int, last: int) -> torch.Tensor:
        """Return what the head reads of tokens of a step, float64 [last - first, C]."""
        return model.norm(sliced(handover, first, last)).double()

    def _memory(self, model: Model) -> torch.Tensor:
        if self._begun is None:
            shape = (self._slots, model.facts.hidden)
            self._begun = torch.zeros(shape, dtype=torch.float64, device=self._device)
        return self._begun
