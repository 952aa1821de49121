"""The controller's end of a worker: a process that is asked for batches."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import psutil

from camshaft.errors import CamshaftError

from .protocol import ABOUT, Fault, read_answer
from .quiet import family

if TYPE_CHECKING:
    from .protocol import Answer, Question

ROOT = Path(__file__).parents[2]


class PeerError(CamshaftError):
    """A worker that failed, died, or took too long."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to run one engine.

    Attributes:
        engine: Its name in figures.
        recipe: The configuration in words; for ours, the recipe's path.
        words: The command that starts a worker.
    """

    engine: str
    recipe: str
    words: tuple[str, ...]


class Worker:
    """A running worker, until `close`.

    Args:
        configuration: What to run.
        bytecode: A folder for compiled modules, so that a second start finds them.
        longest_s: A question may take so long.
    """

    def __init__(self, configuration: Configuration, bytecode: str, longest_s: float) -> None:
        self.configuration = configuration
        self._longest_s = longest_s
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.begun = time.perf_counter()
        self._process = subprocess.Popen(
            configuration.words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def process(self) -> int:
        """Its id."""
        return self._process.pid

    def ask(self, question: Question) -> Answer:
        """Generate a batch.

        Raises:
            PeerError: It failed, died, or took longer than allowed.
        """
        text = {"prompts": question.prompts, "outputs": question.outputs}
        answer = read_answer(self._exchange(text))
        if isinstance(answer, Fault):
            raise PeerError(f"{self._name} failed:\n{answer.what}")
        counts = {len(ids) for ids in answer.ids}
        if len(answer.ids) != len(question.prompts) or counts != {question.outputs}:
            raise PeerError(
                f"{self._name} gave {sorted(counts)} tokens to {len(answer.ids)} prompts, not "
                f"{question.outputs} to {len(question.prompts)}; such a run cannot be compared"
            )
        return answer

    def versions(self) -> dict[str, str]:
        """Return what it runs, by distribution. Raises as `ask`."""
        told: dict[str, str] = json.loads(self._exchange(ABOUT))
        return told

    def memory_mb(self) -> tuple[float, float]:
        """Return (proportional set size, resident set size) of it and its children, in MB."""
        pss = rss = 0
        for process in family([self.process]):
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = psutil.Process(process).memory_full_info()
                pss, rss = pss + memory.pss, rss + memory.rss
        return pss / 1e6, rss / 1e6

    def close(self) -> None:
        """End it: its questions have ended."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe("stdin").close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe("stdout").close()
        self._log.close()

    @property
    def _name(self) -> str:
        return f"{self.configuration.engine} ({self.configuration.recipe})"

    def _pipe(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._process, name)

    def _exchange(self, asked: object) -> str:
        timer = Timer(self._longest_s, self._process.kill)
        timer.start()
        try:
            self._pipe("stdin").write(json.dumps(asked) + "\n")
            self._pipe("stdin").flush()
            line: str = self._pipe("stdout").readline()
        except BrokenPipeError:
            line = ""
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if not line:
            raise PeerError(self._last_words(in_time))
        return line

    def _last_words(self, in_time: bool) -> str:
        status = self._process.wait()
        how = f"ended with {status}" if in_time else f"took more than {self._longest_s:.0f} s"
        self._log.seek(0)
        return f"{self._name} {how}; it said last:\n{self._log.read()[-2000:].strip()}"
