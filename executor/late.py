"""The late executor: results arrive some steps late, so that overlap is real without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.executor import Executor
from camshaft.contracts.moves import Moves

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.moves import Moved, PageMove, Tray
    from camshaft.step import Step, StepOutput


class EarlyReadError(Exception):
    """A result was read before a device with this latency could have had it."""


class LateExecutor(Executor):
    """Runs another executor's steps only when their results are due.

    A step is executed once `late_steps` later ones were launched, or after `drain`. Until then
    nothing of it exists, so a loop that peeks cannot get it by accident. Page moves keep their
    place among the steps, and their end is told late, too.
    """

    def __init__(self, inner: Executor, late_steps: int) -> None:
        self.inner = inner
        self.late_steps = late_steps
        self.wants_fresh = inner.wants_fresh
        self.moves_pages = inner.moves_pages
        self.most_late = 0
        self._launched: list[Step | Moves] = []
        self._moved: list[Moved] = []
        self._masks: dict[int, NDArray[np.int32] | None] = {}
        self._ran: set[int] = set()
        self._newest = 0
        self._draining = False

    def launch(self, step: Step) -> None:
        """Queue the step."""
        self._draining = False
        self._newest = step.id
        self._launched.append(step)

    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """Queue the choice."""
        self._masks[step] = masks

    def drain(self) -> None:
        """Results in flight become due: the loop has nothing to launch without them."""
        self._draining = True

    def wait(self, step: int) -> StepOutput:
        """Run what is due and return the results of `step`.

        Raises:
            EarlyReadError: They are not due.
        """
        late = self._newest - step
        if late < self.late_steps and not self._draining:
            raise EarlyReadError(
                f"step {step} was read after {late} later launches; its results are "
                f"{self.late_steps} steps late"
            )
        self.most_late = max(self.most_late, late)
        while step not in self._ran:
            self._run(self._launched.pop(0))
        self._ran.remove(step)
        return self.inner.wait(step)

    def tray(self, group: int, pages: int) -> Tray:
        """Return one of the inner executor."""
        return self.inner.tray(group, pages)

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """Queue the moves behind the steps launched so far."""
        self._launched.append(Moves(tuple(exports), tuple(loads)))

    def moved(self) -> list[Moved]:
        """Begin moves that no step is before; tell of those that had ended at the last call."""
        ended, self._moved = self._moved, []
        while self._launched and (self._draining or isinstance(self._launched[0], Moves)):
            self._run(self._launched.pop(0))
        self._moved = self.inner.moved()
        return ended

    def _run(self, step: Step | Moves) -> None:
        if isinstance(step, Moves):
            self.inner.move(step.exports, step.loads)
            return
        self.inner.launch(step)
        self.inner.sample(step.id, self._masks.pop(step.id))
        self._ran.add(step.id)

    def sleep(self) -> int:
        """Let the inner executor sleep."""
        return self.inner.sleep()

    def wake(self) -> None:
        """Wake the inner executor."""
        self.inner.wake()

    def close(self) -> None:
        """Close the inner executor."""
        self.inner.close()
