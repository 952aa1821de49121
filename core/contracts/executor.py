"""Executor: runs packed steps. Arrays in, arrays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..step import Step, StepOutput


class Executor(ABC):
    """Owns the device's per-slot state and runs steps in the order of their launch.

    A step is two launches: `launch` runs the forward pass up to the selected rows, `sample`
    chooses tokens. Neither may block on the device. `wait` is the only call that does. At most
    `depth + 1` steps are between `launch` and `wait`.

    Attributes:
        wants_fresh: Steps must list the pages that change hands (`Step.fresh`).
    """

    wants_fresh: bool = False

    @abstractmethod
    def launch(self, step: Step) -> None:
        """Start the forward pass of `step`.

        Raises:
            Exception: The launch failed; nothing of the step has an effect and its pages are
                revoked. The requests of the step end with an error.
        """

    @abstractmethod
    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """Choose tokens for the rows of a launched step.

        Args:
            step: Its id.
            masks: [rows, ceil(V / 32)] bits of allowed tokens for the rows with logits, in step
                order; None allows all. Rows without a constraint have all bits set.

        Raises:
            Exception: No tokens could be chosen. The step is forgotten: nobody waits for it, and
                its requests end with an error.
        """

    @abstractmethod
    def wait(self, step: int) -> StepOutput:
        """Block until a sampled step is complete and return its results. Once, in launch order."""

    def drain(self) -> None:  # noqa: B027 - optional
        """Note that results in flight are needed before anything more is launched."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release the device. No other call follows."""
