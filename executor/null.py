"""The null executor: computes nothing, to measure what the host costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.executor import Executor
from camshaft.contracts.scheduler import Rows
from camshaft.step import Step, StepOutput

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NullExecutor(Executor):
    """Answers every row with the same token, at once. Accepts no draft.

    Args:
        token: The id to answer with.
        pack: Also pack each step, as a remote executor would.
    """

    def __init__(self, token: int = 0, *, pack: bool = True) -> None:
        self.token = token
        self.pack = pack
        self._steps: dict[int, StepOutput] = {}

    def launch(self, step: Step) -> None:
        """Prepare the answer."""
        if self.pack:
            step.pack()
        counts = ((step.rows == Rows.LAST) | (step.rows == Rows.DRAFTS)).astype(np.int32)
        tokens = np.full((len(counts), 1), self.token, dtype=np.int32)
        self._steps[step.id] = StepOutput(step.id, tokens, counts, np.ones(len(counts), np.bool_))

    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """Do nothing."""

    def wait(self, step: int) -> StepOutput:
        """Return the answer."""
        return self._steps.pop(step)
