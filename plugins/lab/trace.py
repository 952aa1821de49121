"""From a profiler's trace to a list of operations, each with the part of the step it belongs to.

A trace is what `torch.profiler` exports: Chrome's trace event format. On a device operations are
kernels and copies. A kernel that was launched one by one belongs to the range that its launch lies
in; one that came with a recorded graph, of a step or of a piece between its attention, has no
launch of its own, and is told by its name and by the order of a layer. On a CPU operations are
torch's own, each with the time that none of its callees took.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from .ranges import DECODE, PREFILL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    Event = dict[str, Any]

OTHER, COPIES = "other", "copies"

_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_COPIES = {"gpu_memcpy", "gpu_memset"}

# The first that is found in a kernel's name counts.
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (PREFILL, r"prefill|flash_fwd|fmha|sdpa"),
        (DECODE, r"decode|cascade|newest|^merge"),
        ("linear", r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|_rows?$|linear|Cijk"),
        ("rope", r"prepare|rope|rotary|write_kernel"),
        ("activation", r"gated|silu|gelu"),
        ("norm", r"norm"),
    )
)
_MORE_OF_THE_SAME = re.compile(r"splitk\w*reduce", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel, copy or torch operation.

    Attributes:
        name: As the trace has it.
        part: Of a step.
        us: Microseconds that it took.
    """

    name: str
    part: str
    us: float


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of an exported trace."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def operations(events: Sequence[Event]) -> list[Operation]:
    """Return the operations of a trace: of the device if it has any, else of the CPU."""
    complete = [one for one in events if one.get("ph") == "X"]
    kernels = [one for one in complete if one.get("cat") == "kernel"]
    if not kernels:
        return _on_cpu(complete)
    copies = [one for one in complete if one.get("cat") in _COPIES]
    return [*_on_device(complete, kernels), *(_copy(one) for one in copies)]


def _copy(event: Event) -> Operation:
    return Operation(event["name"], COPIES, event["dur"])


def _on_device(complete: Sequence[Event], kernels: Sequence[Event]) -> list[Operation]:
    launches = {
        one["args"]["correlation"]: one
        for one in complete
        if one.get("cat") in _LAUNCHES and "correlation" in one.get("args", {})
    }
    ranges = _enclosing(complete, launches.values())
    found: list[Operation] = []
    for stream in _streams(kernels):
        runs: list[Run] = []
        for kernel in stream:
            correlation, name = kernel["args"]["correlation"], kernel["name"]
            launch = launches.get(correlation)
            if launch is None or "graphlaunch" not in launch["name"].lower():
                part = OTHER if launch is None else ranges.get(id(launch), OTHER)
                runs.append(Run([name], _refined(part, name)))
            elif runs and runs[-1].replay == correlation:
                runs[-1].names.append(name)
            else:
                runs.append(Run([name], replay=correlation))
        found += map(_operation, stream, parts_of_runs(runs))
    return found


def _streams(kernels: Iterable[Event]) -> list[list[Event]]:
    """Sort kernels by start, for each stream; a launch is on the stream of its first kernel."""
    first: dict[int, Any] = {}
    streams: dict[Any, list[Event]] = defaultdict(list)
    for kernel in sorted(kernels, key=lambda one: one["ts"]):
        own = first.setdefault(kernel["args"]["correlation"], (kernel["pid"], kernel["tid"]))
        streams[own].append(kernel)
    return list(streams.values())


def _operation(event: Event, part: str) -> Operation:
    return Operation(event["name"], part, event["dur"])


def _refined(part: str, kernel: str) -> str:
    """Tell decoding from prefill where one call did both."""
    return DECODE if part == PREFILL and _kind(kernel) == DECODE else part


def _enclosing(complete: Iterable[Event], launches: Iterable[Event]) -> dict[int, str]:
    """Return the innermost range of ours around each launch, by the launch's identity."""
    wanted = list(launches)
    found: dict[int, str] = {}
    for thread in _threads([*(one for one in complete if _is_range(one)), *wanted]):
        open_ranges: list[Event] = []
        for event in thread:
            while open_ranges and _end(open_ranges[-1]) <= event["ts"]:
                open_ranges.pop()
            if _is_range(event):
                open_ranges.append(event)
            elif open_ranges:
                found[id(event)] = open_ranges[-1]["name"].removeprefix(PREFIX)
    return found


def _is_range(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith(PREFIX)


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end


def _threads(events: Iterable[Event]) -> list[list[Event]]:
    """Sort events by start, the longer first, for each thread of its own."""
    threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for one in events:
        threads[one["pid"], one["tid"]].append(one)
    return [sorted(one, key=lambda event: (event["ts"], -event["dur"])) for one in threads.values()]


def _on_cpu(complete: Sequence[Event]) -> list[Operation]:
    """Return each torch operation with the time that is its own."""
    own: dict[int, float] = {}
    parts: dict[int, str] = {}
    wanted = [one for one in complete if one.get("cat") == "cpu_op" or _is_range(one)]
    for thread in _threads(wanted):
        around: list[Event] = []
        for event in thread:
            while around and _end(around[-1]) <= event["ts"]:
                around.pop()
            own[id(event)] = event["dur"]
            if around:
                own[id(around[-1])] -= event["dur"]
            outer = parts[id(around[-1])] if around else OTHER
            is_range = _is_range(event)
            parts[id(event)] = event["name"].removeprefix(PREFIX) if is_range else outer
            around.append(event)
    return [
        Operation(one["name"], parts[id(one)], max(0.0, own[id(one)]))
        for one in wanted
        if not _is_range(one)
    ]


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), OTHER)


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels that follow each other on a stream.

    Attributes:
        names: Of the replay of a graph, or of one kernel that was launched by itself.
        part: Of the latter.
        replay: Tells replays from each other.
    """

    names: list[str]
    part: str = ""
    replay: int = -1


def parts_of_runs(runs: Sequence[Run]) -> list[str]:
    """Return the part that each kernel belongs to.

    Linears have names that say little, so they are told by what stands before and behind them:
    qkv is followed by rotation or attention, out follows attention, gate_up follows a norm or
    out, down follows the activation or a gate_up that has it inside. What is left is the head, and
    what follows it in a replay chooses tokens.

    Args:
        runs: Of a stream, in its order.
    """
    parts: list[str] = []
    before = ""
    for place, run in enumerate(runs):
        if run.part:
            own = [run.part]
        else:
            if before == "head":  # a step begins
                before = ""
            own = _parts_of_a_replay(run.names, before, _until_a_replay(runs[place + 1 :]))
        parts += own
        before = next((part for part in reversed(own) if part not in (OTHER, "sampling")), before)
    return parts


def _until_a_replay(runs: Sequence[Run]) -> list[str]:
    return [run.part for run in takewhile(lambda run: run.part, runs)]


def _parts_of_a_replay(names: Sequence[str], before: str, behind: Sequence[str]) -> list[str]:
    """Tell the kernels of a replay by the part before it and the parts behind it."""
    kinds = [_kind(name) for name in names]
    parts: list[str] = []
    for place, name in enumerate(names):
        part = kind = kinds[place]
        if before == "head" and kind != "linear":
            part = "sampling"
        elif kind == "linear":
            same = bool(before) and bool(_MORE_OF_THE_SAME.search(name))
            part = before if same else _linear(before, kinds[place + 1 :], behind)
        parts.append(part)
        if part not in (OTHER, "sampling"):
            before = part
    return parts


def _linear(before: str, inside: Sequence[str], behind: Sequence[str]) -> str:
    """Tell a linear by the part before it, the kinds that a replay still has, and what follows."""
    if before in (DECODE, PREFILL):
        return "out"
    if before in ("activation", "gate_up"):
        return "down"
    if before == "out":
        return "gate_up"
    known = inside if "linear" in inside else behind  # else names of samplers could mislead
    following = next((kind for kind in known if kind not in (OTHER, "linear")), "")
    if following in ("rope", DECODE, PREFILL):
        return "qkv"
    return "gate_up" if following == "activation" else "head"
