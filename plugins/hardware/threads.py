"""How many threads a model runs on, on which cores, and why: read from the system's files.

Every function takes the root of the file system, so that other machines can be pretended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from .components import CpuSettings

ROOT = Path("/")

SPINS_OWN = 2_000
"""Looks for work before a thread sleeps, some 50 us, where cores are ours: longer than the gaps
between the operations of a step. Ten times as many were no faster on two cores of our own."""
SPINS_SHARED = 500
"""The same where a quota counts the time that threads spin."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process may use.

    Attributes:
        processors: Logical processors in its affinity mask, ascending.
        cores: One processor of each physical core among them, ascending.
        node_of: NUMA node of each processor; empty where the system does not tell.
        quota: Processors' worth of time that a container may use; None without a limit.
    """

    processors: tuple[int, ...]
    cores: tuple[int, ...]
    node_of: dict[int, int]
    quota: float | None


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """What was chosen.

    Attributes:
        threads: How many, the caller's included.
        cores: Where each of them stays; empty where they may move.
        spins: Looks for work before a thread sleeps.
        reasons: Why, in words.
    """

    threads: int
    cores: tuple[int, ...]
    spins: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        where = f"on cores {as_ranges(self.cores)}" if self.cores else "not pinned"
        head = f"{self.threads} threads, {where}, {self.spins:,} spins"
        return f"{head} ({'; '.join(self.reasons)})"


def look(root: Path = ROOT, affinity: Collection[int] | None = None) -> Machine:
    """Return what this process may use.

    Args:
        root: Of the file system.
        affinity: Processors in its mask; by default those of this process.
    """
    processors = tuple(sorted(_affinity() if affinity is None else affinity))
    folder = root / "sys/devices/system"
    return Machine(
        processors, _physical(folder / "cpu", processors), _nodes(folder / "node"), quota(root)
    )


def plan_threads(settings: CpuSettings, machine: Machine) -> ThreadPlan:
    """Choose threads, cores and spins; what the settings name is taken as it is."""
    cores, reasons = list(machine.cores), []
    idle = len(machine.processors) - len(cores)
    if idle:
        reasons.append(f"{idle} hyper-threads left for other work")
    cores = _one_node(cores, machine, reasons)
    shares = machine.quota is not None and machine.quota < len(machine.processors)
    threads = len(cores)
    if shares and machine.quota is not None and floor(machine.quota) < threads:
        threads = max(1, floor(machine.quota))
        reasons.append(f"a container's quota is {machine.quota:g} processors")
    if settings.threads != "auto":
        threads = settings.threads
        reasons = ["hardware.threads says so"]
    pins = not shares and 1 < threads == len(cores)  # other engines may want the rest
    if settings.pin != "auto":
        pins = settings.pin
        reasons.append(f"hardware.pin is {str(pins).lower()}")
    elif shares:
        reasons.append("not pinned, since a quota shares the cores out")
    elif threads != len(cores):
        reasons.append(f"not pinned, since {len(cores)} cores may be used")
    short = shares or threads > len(cores)
    spins = SPINS_SHARED if short else SPINS_OWN
    if settings.spins != "auto":
        spins = settings.spins
    where = tuple(cores[at % len(cores)] for at in range(threads)) if pins else ()
    return ThreadPlan(threads, where, spins, tuple(reasons) or ("one a core",))


def quota(root: Path = ROOT) -> float | None:
    """Return the processors' worth of time that this container may use, of cgroups v1 or v2."""
    limits = []
    for folder in _groups(root, "cpu"):
        text = _read(folder / "cpu.max")
        if text is not None:
            share, _, period = text.partition(" ")
        else:
            share = _read(folder / "cpu.cfs_quota_us") or "-1"
            period = _read(folder / "cpu.cfs_period_us") or "100000"
        if share != "max" and int(share) > 0:
            limits.append(int(share) / int(period or 100_000))
    return min(limits, default=None)


def memory_bound(root: Path = ROOT) -> int | None:
    """Return the bytes that this container may use, of cgroups v1 or v2; None without a limit."""
    limits = []
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text is not None and text != "max":
                limits.append(int(text))
    return min(limits, default=None)


def as_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as Linux writes them, such as `0-3,8`."""
    parts: list[list[int]] = []
    for one in numbers:
        if parts and one == parts[-1][-1] + 1:
            parts[-1].append(one)
        else:
            parts.append([one])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in parts)


def numbers_in(text: str) -> list[int]:
    """Return the numbers that Linux writes as `0-3,8`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _affinity() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _physical(folder: Path, processors: Sequence[int]) -> tuple[int, ...]:
    """Return the first processor of each core, of those in the mask."""
    seen: set[int] = set()
    cores = []
    for one in processors:
        if one in seen:
            continue
        cores.append(one)
        text = _read(folder / f"cpu{one}/topology/thread_siblings_list")
        seen |= {one, *numbers_in(text or "")}
    return tuple(cores)


def _nodes(folder: Path) -> dict[int, int]:
    return {
        processor: int(node.name.removeprefix("node"))
        for node in sorted(folder.glob("node[0-9]*"))
        for processor in numbers_in(_read(node / "cpulist") or "")
    }


def _one_node(cores: list[int], machine: Machine, reasons: list[str]) -> list[int]:
    """Return the cores of the first one's NUMA node: memory of another is slower to reach."""
    nodes = {machine.node_of.get(core) for core in cores}
    if len(nodes) < 2:
        return cores
    node = machine.node_of.get(cores[0])
    near = [core for core in cores if machine.node_of.get(core) == node]
    reasons.append(f"NUMA node {node} only, {len(near)} of {len(cores)} cores")
    return near


def _groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and those above, as mounted in a container."""
    mount = root / "sys/fs/cgroup"
    found = [mount, mount / controller, mount / f"{controller},cpuacct"]
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        own = mount / controllers / path.lstrip("/")
        found += [own, *(above for above in own.parents if mount in above.parents)]
    return list(dict.fromkeys(found))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
