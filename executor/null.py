"""The null executor: computes nothing, to measure what the host costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.executor import Executor
from camshaft.contracts.moves import Moved
from camshaft.contracts.scheduler import Rows
from camshaft.step import Step, StepOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.moves import PageMove


class NoTray:
    """A tray of the null executor: pages hold nothing, so it keeps nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def read(self, place: int, into: memoryview) -> None:
        """Give zeros."""
        into[:] = bytes(into.nbytes)

    def write(self, place: int, page: memoryview) -> None:
        """Keep nothing."""

    def first(self, count: int) -> NoTray:
        """Return a smaller one."""
        return NoTray(count)


class NullExecutor(Executor):
    """Answers every row with the same token, at once. Accepts no draft.

    Args:
        token: The id to answer with.
        pack: Also pack each step, as a remote executor would.
    """

    immediate = True
    moves_pages = True

    def __init__(self, token: int = 0, *, pack: bool = True) -> None:
        self.token = token
        self.pack = pack
        self._steps: dict[int, StepOutput] = {}
        self._moved: list[Moved] = []

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

    def tray(self, group: int, pages: int) -> NoTray:
        """Return a tray that keeps nothing."""
        return NoTray(pages)

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """Note that it is done."""
        self._moved += [Moved(one.ticket) for one in (*exports, *loads)]

    def moved(self) -> list[Moved]:
        """Return all moves since the last call."""
        moved, self._moved = self._moved, []
        return moved
