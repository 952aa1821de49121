"""The null executor: computes nothing, to measure what the host costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.executor import Executor
from camshaft.contracts.moves import Moved
from camshaft.contracts.scheduler import Rows
from camshaft.step import LogprobRows, PooledRows, Step, StepOutput, int32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.moves import PageMove


_LAST, _DRAFTS = int(Rows.LAST), int(Rows.DRAFTS)


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
        counts = ((step.rows == _LAST) | (step.rows == _DRAFTS)).astype(np.int32)
        tokens = np.full((len(counts), 1), self.token, dtype=np.int32)
        self._steps[step.id] = StepOutput(
            step.id,
            tokens,
            counts,
            np.ones(len(counts), np.bool_),
            reads=_reads(step),
            pooled=_pooled(step),
        )

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


def _pooled(step: Step) -> PooledRows | None:
    """Return vectors of one element, 1."""
    if not len(step.pooling):
        return None
    rows = int32(((step.pooling > 0) & (step.rows == _LAST)).nonzero()[0])
    return PooledRows(rows, np.ones((len(rows), 1), dtype=np.float32))


def _reads(step: Step) -> LogprobRows | None:
    """Return reports on prompt tokens without alternatives: each was sure."""
    count = len(step.reads)
    if not count:
        return None
    owners = np.searchsorted(step.starts, step.reads[:, 0], side="right") - 1
    nothing = np.zeros(count, dtype=np.float32)
    empty = np.zeros((count, 0), dtype=np.int32)
    ones = np.ones(count, dtype=np.int32)
    return LogprobRows(int32(owners), ones - 1, nothing, ones, empty, empty.astype(np.float32))
