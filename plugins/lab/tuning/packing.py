"""Greedy packing of operations onto a device: who runs beside whom, and how long all of it takes.

Source: Zhu et al., "NanoFlow", arXiv 2408.12757: operations of several nano-batches, in topological
order, share a device if they need different resources of it. Of the ready ones the one with the
most work behind it starts first, as soon as no running one is bound by the same resource.
Departures: streams are not given parts of the device, and how much two kernels hinder each other is
one measured number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .operations import COMPUTE, MEMORY, NETWORK, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NOW = 1e-12  # seconds that are as good as none


@dataclass(frozen=True, slots=True)
class Task:
    """An operation with its place in the order.

    Attributes:
        operation: What is to be done.
        after: Numbers of the tasks that end before it starts, all of them lower than its own.
    """

    operation: Operation
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing:
    """A plan.

    Attributes:
        seconds: Until the last task ends.
        starts: Of each task, in seconds.
        busy: Seconds for which the tasks keep each resource busy; see `Operation.busy`.
    """

    seconds: float
    starts: tuple[float, ...]
    busy: tuple[float, float, float]


def pack(tasks: Sequence[Task], overlap: float) -> Packing:
    """Plan tasks.

    Args:
        tasks: In topological order.
        overlap: What two operations on the device gain side by side, as a share of the shorter one:
            at 1 the longer one hides it, at 0 they take as long as one after the other.
    """
    device = _Device(tasks, overlap)
    while device.ready or device.running:
        device.start()
        device.advance()
    return Packing(device.now, tuple(device.starts), _busy(one.operation for one in tasks))


class _Device:
    """What runs, what may start, and what is left of each task."""

    def __init__(self, tasks: Sequence[Task], overlap: float) -> None:
        self._tasks = tasks
        self._overlap = overlap
        self._ranks = _work_behind(tasks)
        self._left = [one.operation.seconds for one in tasks]
        self._missing = [len(one.after) for one in tasks]
        self._followers: list[list[int]] = [[] for _ in tasks]
        for number, one in enumerate(tasks):
            for before in one.after:
                self._followers[before].append(number)
        self.ready = [number for number, count in enumerate(self._missing) if not count]
        self.running: list[int] = []
        self.starts = [0.0] * len(tasks)
        self.now = 0.0

    def start(self) -> None:
        """Start tasks: at most one for each resource that binds nobody who runs."""
        taken = {self._tasks[one].operation.bound for one in self.running}
        for number in sorted(self.ready, key=lambda one: (-self._ranks[one], one)):
            bound = self._tasks[number].operation.bound
            if bound not in taken:
                taken.add(bound)
                self.ready.remove(number)
                self.running.append(number)
                self.starts[number] = self.now

    def advance(self) -> None:
        """Let time pass until a task ends."""
        beside = [self._tasks[one].operation for one in self.running]
        speeds = [_speed(one, beside, self._overlap) for one in beside]
        pairs = list(zip(self.running, speeds, strict=True))
        passed = min(self._left[one] / speed for one, speed in pairs)
        self.now += passed
        for one, speed in pairs:
            self._left[one] -= passed * speed
            if self._left[one] <= _NOW:
                self._end(one)

    def _end(self, number: int) -> None:
        self.running.remove(number)
        for follower in self._followers[number]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self.ready.append(follower)


def _work_behind(tasks: Sequence[Task]) -> list[float]:
    """Return the longest way from the start of each task to the end of all, in seconds."""
    behind = [0.0] * len(tasks)
    for number in range(len(tasks) - 1, -1, -1):
        behind[number] += tasks[number].operation.seconds
        for before in tasks[number].after:
            behind[before] = max(behind[before], behind[number])
    return behind


def _speed(operation: Operation, running: Sequence[Operation], overlap: float) -> float:
    """Return how fast an operation runs beside the others; 1 is as alone."""
    if operation.bound == NETWORK:
        return 1.0
    beside = [one for one in running if one.bound != NETWORK]
    hindered = 1 + (1 - overlap) * (len(beside) - 1)
    used = (math.fsum(one.use(resource) for one in beside) for resource in (COMPUTE, MEMORY))
    return 1 / max(hindered, *used)


def _busy(operations: Iterable[Operation]) -> tuple[float, float, float]:
    compute = memory = network = 0.0
    for one in operations:
        compute += one.busy[0]
        memory += one.busy[1]
        network += one.busy[2]
    return compute, memory, network
