"""From a profiler's trace to a list of operations, each with the part of the step it belongs to.

A trace is what `torch.profiler` exports: Chrome's trace event format. On a device operations are
kernels and copies. A kernel that was launched one by one belongs to the range that its launch lies
in; one that came with a recorded graph has no launch of its own, and is told by its name and by the
order of a layer. On a CPU operations are torch's own, each with the time that none of its callees
took.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .ranges import DECODE, PREFILL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Event = dict[str, Any]

OTHER = "other"

_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_COPIES = {"gpu_memcpy", "gpu_memset"}

# The first that is found in a kernel's name counts.
_KINDS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (PREFILL, r"prefill|flash_fwd|fmha|sdpa"),
        (DECODE, r"decode|cascade|^merge"),
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


def operations(events: Sequence[Event]) -> list[Operation]:
    """Return the operations of a trace: of the device if it has any, else of the CPU."""
    complete = [one for one in events if one.get("ph") == "X"]
    kernels = [one for one in complete if one.get("cat") == "kernel"]
    if not kernels:
        return _on_cpu(complete)
    copies = [one for one in complete if one.get("cat") in _COPIES]
    return [*_on_device(complete, kernels), *(_copy(one) for one in copies)]


def _copy(event: Event) -> Operation:
    return Operation(event["name"], "copies", event["dur"])


def _on_device(complete: Sequence[Event], kernels: Sequence[Event]) -> list[Operation]:
    launches = {
        one["args"]["correlation"]: one
        for one in complete
        if one.get("cat") in _LAUNCHES and "correlation" in one.get("args", {})
    }
    ranges = _enclosing(complete, launches.values())
    found: list[Operation] = []
    replays: dict[int, list[Event]] = defaultdict(list)
    for kernel in kernels:
        correlation = kernel["args"]["correlation"]
        launch = launches.get(correlation)
        if launch is not None and "graphlaunch" in launch["name"].lower():
            replays[correlation].append(kernel)
        else:
            part = OTHER if launch is None else ranges.get(id(launch), OTHER)
            found.append(_operation(kernel, _refined(part, kernel["name"])))
    for replay in replays.values():
        replay.sort(key=lambda one: one["ts"])
        parts = parts_of_a_step([one["name"] for one in replay])
        found += [_operation(*pair) for pair in zip(replay, parts, strict=True)]
    return found


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


def parts_of_a_step(names: Sequence[str]) -> list[str]:
    """Return the part that each kernel of a recorded step belongs to.

    Linears have names that say little, so they are told by what stands before and behind them:
    qkv is followed by rotation or attention, out follows attention, gate_up follows a norm or
    out, down follows the activation or a gate_up that has it inside. What is left is the head, and
    what follows it chooses tokens.

    Args:
        names: In the order of the stream.
    """
    kinds = [_kind(name) for name in names]
    parts: list[str] = []
    before = ""
    for place, kind in enumerate(kinds):
        part = kind
        if before == "head" and kind != "linear":
            part = "sampling"
        elif kind == "linear":
            same = bool(before) and bool(_MORE_OF_THE_SAME.search(names[place]))
            part = before if same else _linear(before, kinds[place + 1 :])
        parts.append(part)
        if part not in (OTHER, "sampling"):
            before = part
    return parts


def _linear(before: str, behind: Sequence[str]) -> str:
    """Tell a linear by the part before it and the kinds behind it."""
    if before in (DECODE, PREFILL):
        return "out"
    if before in ("activation", "gate_up"):
        return "down"
    if before == "out":
        return "gate_up"
    if "linear" not in behind:
        return "head"
    following = next((kind for kind in behind if kind not in (OTHER, "linear")), "")
    if following in ("rope", DECODE, PREFILL):
        return "qkv"
    return "gate_up" if following == "activation" else "head"
