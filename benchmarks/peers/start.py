"""A process from its start to its first token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from .protocol import Question
    from .worker import Worker


class Start:
    """Starts a worker, again for each try; the last one is there until the block ends.

    Args:
        open_worker: Starts one.
        question: Whose answer is the first token.
    """

    def __init__(self, open_worker: Callable[[], Worker], question: Question) -> None:
        self._open, self._question = open_worker, question
        self._worker: Worker | None = None

    def begin(self) -> float:
        """Return the seconds from the start of a process to its first token."""
        self.close()
        self._worker = self._open()
        self._worker.ask(self._question)
        return time.perf_counter() - self._worker.begun

    def processes(self) -> list[int]:
        """Return the ids of what runs."""
        return [] if self._worker is None else [self._worker.process]

    def memory(self, questions: Sequence[Question]) -> dict[str, float]:
        """Return what the process holds after some work, in MB."""
        for question in questions:
            self.worker.ask(question)
        pss, rss = self.worker.memory_mb()
        return {"pss_mb": pss, "rss_mb": rss}

    @property
    def worker(self) -> Worker:
        """What `begin` started."""
        assert self._worker is not None
        return self._worker

    def close(self) -> None:
        """End what runs."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Start:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
