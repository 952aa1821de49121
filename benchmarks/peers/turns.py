"""Engines that take turns: a round is one sample of each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from .protocol import Question
from .start import Start
from .work import METRICS, START, figure, is_better, leading, questions
from .worker import PeerError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from .protocol import Answer
    from .quiet import Quiet
    from .worker import Configuration

    Sample = Callable[[Configuration, int], dict[str, float]]

NEAR = 0.75
"""Configurations of a peer with less than this share of its best one's rate go no further."""

FOREIGN = "foreign_share"
SAME = "first ids in common"

Metrics = dict[str, float]


class Turns:
    """Measures configurations; the first one's answers are what the others' are compared with.

    Attributes:
        found: Repeats by (workload, metric), then configuration.
        versions: What each configuration runs.
    """

    def __init__(
        self,
        configurations: Sequence[Configuration],
        quiet: Quiet,
        bytecode: str,
        vocab: int,
        longest_s: float,
    ) -> None:
        """Prepare.

        Args:
            configurations: Ours first; others of its engine are always run.
            quiet: Takes the samples.
            bytecode: See `Worker`.
            vocab: Token ids are below it.
            longest_s: See `Worker`.
        """
        self.found: dict[tuple[str, str], dict[Configuration, list[float]]] = {}
        self.versions: dict[Configuration, dict[str, str]] = {}
        self._configurations = list(configurations)
        self._quiet, self._vocab = quiet, vocab
        self._open: Callable[[Configuration], Worker] = lambda one: Worker(one, bytecode, longest_s)
        self._workers: dict[Configuration, Worker] = {}
        self._number = 0

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as stack:
            for worker in self._workers.values():
                stack.callback(worker.close)
        self._workers.clear()

    def run(self, workload: str, repeats: int) -> None:
        """Run a workload in processes that stay: a round that warms up, then those that count.

        Raises:
            PeerError: Of the last configuration of an engine, if none of them can be measured.
        """
        metric = METRICS[workload]
        firsts: dict[int, list[Answer]] = {}

        def sample(one: Configuration, number: int) -> Metrics:
            asked = questions(workload, number, self._vocab)
            worker = self._worker(one)
            answers, foreign = self._quiet.sample(
                lambda: [worker.ask(question) for question in asked], lambda: [worker.process]
            )
            same = min(map(_in_common, firsts.setdefault(number, answers), answers))
            return {metric: figure(workload, answers), FOREIGN: foreign, SAME: same}

        self._rounds(workload, metric, sample, repeats)

    def start(self, repeats: int) -> None:
        """Start processes, one at a time, up to their first token. Raises as `run`.

        What each holds after a batch of 32 is read in the round that warms up.
        """
        holds: dict[Configuration, Metrics] = {}

        def sample(one: Configuration, number: int) -> Metrics:
            (asked,) = questions("cpu-single", number, self._vocab)
            with Start(lambda: self._open(one), Question(asked.prompts, 1)) as start:
                start_s, foreign = self._quiet.sample(start.begin, start.processes)
                if one not in holds:
                    holds[one] = start.memory(questions("cpu-batch32", number, self._vocab))
                    self.versions[one] = start.worker.versions()
            return {"start_s": start_s, FOREIGN: foreign}

        self._rounds(START, "start_s", sample, repeats)
        for one, memory in holds.items():
            for metric, value in memory.items():
                self._note(START, metric, one, value)

    def by_name(self) -> dict[tuple[str, str], dict[tuple[str, str], list[float]]]:
        """Return what was found, configurations by (engine, recipe)."""
        return {
            key: {(one.engine, one.recipe): values for one, values in found.items()}
            for key, found in self.found.items()
        }

    def _rounds(self, workload: str, metric: str, sample: Sample, repeats: int) -> None:
        title = f"{workload} (warm-up)"
        first = self._round(title, metric, sample, self._configurations)
        left = self._near(metric, {one: taken[metric] for one, taken in first.items()})
        counted = []
        for _ in range(repeats):
            counted.append(self._round(workload, metric, sample, left))
            left = [one for one in left if one in counted[-1]]
            left = [*left[1:], left[0]]  # nobody always follows the same one
        for one in sorted(left, key=self._configurations.index):
            for taken in counted:
                for name in (metric, FOREIGN):
                    self._note(workload, name, one, taken[one][name])

    def _round(
        self, title: str, metric: str, sample: Sample, of: Sequence[Configuration]
    ) -> dict[Configuration, Metrics]:
        """Take a sample of each; one that fails is told and left out unless it is its last."""
        left = list(of)
        found: dict[Configuration, Metrics] = {}
        for one in of:
            try:
                found[one] = sample(one, self._number)
            except PeerError as error:
                if one in self._workers:
                    self._workers.pop(one).close()
                left.remove(one)
                if all(other.engine != one.engine for other in left):
                    raise
                print(f"{title}: left out: {error}", flush=True)
            else:
                _tell(title, one, metric, found[one])
        self._number += 1
        return found

    def _near(self, metric: str, found: dict[Configuration, float]) -> list[Configuration]:
        """Return all of ours, and those of each peer that are near its best."""
        ours = self._configurations[0].engine
        best: dict[str, float] = {}
        for one, value in found.items():
            if one.engine not in best or is_better(metric, value, best[one.engine]):
                best[one.engine] = value
        return [
            one
            for one, value in found.items()
            if one.engine == ours or _share(metric, value, best[one.engine]) >= NEAR
        ]

    def _worker(self, one: Configuration) -> Worker:
        if one not in self._workers:
            self._workers[one] = self._open(one)
            self.versions[one] = self._workers[one].versions()
        return self._workers[one]

    def _note(self, workload: str, metric: str, one: Configuration, value: float) -> None:
        self.found.setdefault((workload, metric), {}).setdefault(one, []).append(value)


def _in_common(one: Answer, other: Answer) -> int:
    return min(map(leading, one.ids, other.ids))


def _share(metric: str, value: float, best: float) -> float:
    return value / best if metric == "out_tok_s" else best / value


def _tell(workload: str, one: Configuration, metric: str, taken: Metrics) -> None:
    same = f", {SAME} {taken[SAME]:.0f}" if SAME in taken else ""
    print(
        f"{workload:26} {one.engine:10} {one.recipe:44} {taken[metric]:9.2f} {metric}, "
        f"others {taken[FOREIGN]:.1%}{same}",
        flush=True,
    )
