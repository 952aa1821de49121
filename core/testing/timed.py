"""Engines in virtual time: steps that take as long as a law says, on a clock that waiting moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..contracts.executor import Executor
from ..contracts.predictor import StepShape, StepTimePredictor
from ..contracts.scheduler import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..loop.clock import VirtualClock
    from ..step import Step, StepOutput

    Law = Callable[[StepShape], float]


def shape_of(step: Step) -> StepShape:
    """Return what drives the time of a packed step."""
    tokens = np.diff(step.starts)
    return StepShape(
        requests=len(step.slots),
        tokens=int(tokens.sum()),
        decode_tokens=int(np.count_nonzero(tokens == 1)),
        context=int((step.context + tokens).sum()),
        logits_rows=int(np.count_nonzero(step.rows != Rows.NONE)),
    )


class TimedExecutor(Executor):
    """Runs another executor's steps, as on a device that takes them one after the other.

    Attributes:
        free_s: When the device has done everything that was launched.
    """

    def __init__(self, inner: Executor, clock: VirtualClock, law: Law) -> None:
        """Begin at the time that it is.

        Args:
            inner: Computes the answers, in no time.
            clock: Is moved on by whoever waits for a step.
            law: Seconds of a step.
        """
        self.wants_fresh = inner.wants_fresh
        self.free_s = clock.now()
        self._inner = inner
        self._clock = clock
        self._law = law
        self._ends: dict[int, float] = {}

    def launch(self, step: Step) -> None:
        """See `Executor.launch`."""
        self._inner.launch(step)
        self.free_s = max(self.free_s, self._clock.now()) + self._law(shape_of(step))
        self._ends[step.id] = self.free_s

    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """See `Executor.sample`."""
        self._inner.sample(step, masks)

    def wait(self, step: int) -> StepOutput:
        """See `Executor.wait`; it is the step's end afterwards."""
        self._clock.advance_to(max(self._clock.now(), self._ends.pop(step)))
        return self._inner.wait(step)

    def close(self) -> None:
        """Close the inner executor."""
        self._inner.close()


class LawPredictor(StepTimePredictor):
    """Knows the law."""

    def __init__(self, law: Law) -> None:
        self._law = law

    def predict(self, shape: StepShape) -> float:
        """See `StepTimePredictor.predict`."""
        return self._law(shape)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Nothing is to be learnt."""
