"""Who else uses the processor while a sample is taken: other programs, other virtual machines."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)
"""Columns of `cpu` that count no work: idle, and waiting for a disk."""

_GUEST = 8
"""The first column that is counted in others, too."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was used up to a moment.

    Attributes:
        at: Seconds of a clock that never goes back.
        busy_s: Of all cores together: by anybody, stolen by the host included.
        own_s: By the processes that are asked about.
    """

    at: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls, processes: Iterable[int] = ()) -> Moment:
        """Read the counters.

        Args:
            processes: Ids; with each count its children and this process, the controller.
        """
        own_s = sum(cpu_seconds(process) for process in {os.getpid(), *family(processes)})
        return cls(time.monotonic(), busy_seconds(_STAT.read_text()), own_s)

    def foreign_share(self, later: Moment, cores: int) -> float:
        """Return the share of all cores that others had since this moment; counters have 10 ms."""
        others = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        return min(1.0, max(0.0, others / (cores * (later.at - self.at))))


def busy_seconds(stat: str) -> float:
    """Return the seconds that were worked, from the text of `/proc/stat`."""
    columns = [int(one) for one in stat.partition("\n")[0].split()[1:]][:_GUEST]
    return (sum(columns) - sum(columns[_IDLE])) * _TICK_S


def family(processes: Iterable[int]) -> set[int]:
    """Return processes and all that descend from them."""
    found = set(processes)
    for process in tuple(found):
        with suppress(psutil.NoSuchProcess):
            found |= {child.pid for child in psutil.Process(process).children(recursive=True)}
    return found


def cpu_seconds(process: int) -> float:
    """Return what a process used; nothing if it has ended."""
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@dataclass(slots=True)
class Quiet:
    """Takes samples while others leave the processor alone.

    Attributes:
        most_foreign: Share of all cores that others may have; 1 takes whatever comes.
        tries: Samples to take before the quietest one must do.
        patience_s: To wait for a quiet half second before each try.
    """

    most_foreign: float = 0.05
    tries: int = 4
    patience_s: float = 60.0
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    def sample(
        self, take: Callable[[], T], processes: Callable[[], Iterable[int]]
    ) -> tuple[T, float]:
        """Return a sample and the share of the cores that others had meanwhile.

        Args:
            take: Takes it.
            processes: Returns the ids of those that are measured; they may be started meanwhile.
                All others are foreign, idle workers too.
        """
        found: list[tuple[T, float]] = []
        for _ in range(self.tries):
            self._wait()
            before = Moment.now(processes())
            taken = take()
            found.append((taken, before.foreign_share(Moment.now(processes()), self.cores)))
            if found[-1][1] <= self.most_foreign:
                return found[-1]
        return min(found, key=lambda one: one[1])

    def _wait(self) -> None:
        """Return after a quiet half second, or when patience ends."""
        until = time.monotonic() + self.patience_s
        while self.most_foreign < 1 and time.monotonic() < until:
            before = Moment.now()
            time.sleep(0.5)
            if before.foreign_share(Moment.now(), self.cores) <= self.most_foreign:
                return
