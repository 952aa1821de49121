"""What a step's streams did beside each other: from a profiler's trace to a small SVG picture."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    Event = dict[str, Any]

_ATTENTION = re.compile(r"prefill|flash_fwd|fmha|sdpa", re.IGNORECASE)
_LINEAR = re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma", re.IGNORECASE)

WIDTH, LEFT, TOP, ROW, BELOW = 1000, 90, 50, 40, 60
"""Of the plot area, the space around it, and a lane, in pixels."""

COLOURS = {"compute": "#c8553d", "memory": "#1f6f8b"}

_STYLE = "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.axis{stroke:#888}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One kernel.

    Attributes:
        lane: Number of its stream, the busiest first.
        start: Microseconds since the first kernel.
        end: Likewise.
        name: As the trace has it.
        bound: What limits it: products of many rows and attention of prompts compute, all else
            waits for memory.
    """

    lane: int
    start: float
    end: float
    name: str
    bound: Literal["compute", "memory"]


def bars(events: Sequence[Event], rows: Sequence[int], ridge: float) -> list[Bar]:
    """Return the kernels of a step by their start.

    Args:
        events: Of a trace in Chrome's form.
        rows: Tokens of each lane's part, in the order of lanes.
        ridge: Rows from which on a product computes longer than it reads its weight.
    """
    kernels = [one for one in events if one.get("ph") == "X" and one.get("cat") == "kernel"]
    if not kernels:
        return []
    busy: dict[int, float] = defaultdict(float)
    for one in kernels:
        busy[one["args"]["stream"]] += one["dur"]
    lanes = {stream: lane for lane, stream in enumerate(sorted(busy, key=lambda s: -busy[s]))}
    begin = min(one["ts"] for one in kernels)
    found = []
    for one in sorted(kernels, key=lambda event: event["ts"]):
        lane, start = lanes[one["args"]["stream"]], one["ts"] - begin
        many = lane < len(rows) and rows[lane] >= ridge
        computes = _ATTENTION.search(one["name"]) or (many and _LINEAR.search(one["name"]))
        bound: Literal["compute", "memory"] = "compute" if computes else "memory"
        found.append(Bar(lane, start, start + one["dur"], one["name"], bound))
    return found


def spans(found: Sequence[Bar]) -> list[tuple[float, float]]:
    """Return the times in which any of these kernels runs, joined."""
    joined: list[list[float]] = []
    for one in sorted(found, key=lambda bar: bar.start):
        if joined and one.start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], one.end)
        else:
            joined.append([one.start, one.end])
    return [(first, last) for first, last in joined]


def beside(found: Sequence[Bar]) -> float:
    """Return the microseconds in which kernels of several lanes run."""
    marks = []
    for _, own in groupby(sorted(found, key=lambda bar: bar.lane), key=lambda bar: bar.lane):
        for first, last in spans(list(own)):
            marks += [(first, 1), (last, -1)]
    total, running, before = 0.0, 0, 0.0
    for at, change in sorted(marks):
        if running > 1:
            total += at - before
        running, before = running + change, at
    return total


def window(found: Sequence[Bar], layers: float) -> tuple[float, float]:
    """Return a time in the middle of the second lane in which it runs this share of its chain.

    Args:
        found: Of a step.
        layers: Share, such as 2 / 32. Without a second lane it is that of the first.
    """
    lane = min(1, max(bar.lane for bar in found))
    own = [bar for bar in found if bar.lane == lane]
    first, last = own[0].start, max(bar.end for bar in own)
    start = first + (last - first) * (1 - layers) / 2
    return start, start + (last - first) * layers


def draw(found: Sequence[Bar], title: str, names: Sequence[str], view: tuple[float, float]) -> str:
    """Return the picture: a row for each lane, a bar for each kernel.

    Args:
        found: Of a step.
        title: Above all.
        names: Of the lanes; others are not drawn.
        view: First and last microsecond.
    """
    start, end = view
    scale = WIDTH / (end - start)
    height = TOP + ROW * len(names) + BELOW
    parts = [
        f'<text x="{LEFT - 8}" y="{TOP + ROW * lane + 22}" text-anchor="end">{escape(name)}</text>'
        for lane, name in enumerate(names)
    ]
    for bar in found:
        if bar.lane >= len(names) or bar.end <= start or bar.start >= end:
            continue
        first, last = max(bar.start, start), min(bar.end, end)
        parts.append(
            f'<rect x="{LEFT + (first - start) * scale:.1f}" y="{TOP + ROW * bar.lane + 4}" '
            f'width="{max(0.5, (last - first) * scale):.1f}" height="{ROW - 8}" '
            f'fill="{COLOURS[bar.bound]}" stroke="white" stroke-width="0.3">'
            f"<title>{escape(bar.name[:80])}: {bar.end - bar.start:.0f} us</title></rect>"
        )
    bottom = TOP + ROW * len(names)
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}h{WIDTH}"/>')
    for tick in range(6):
        at = LEFT + WIDTH * tick / 5
        text = f"{(end - start) * tick / 5:.0f} us"
        parts.append(f'<text x="{at:.0f}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for place, (bound, colour) in enumerate(COLOURS.items()):
        x = LEFT + 160 * place
        parts.append(f'<rect x="{x}" y="{bottom + 34}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{bottom + 46}">bound by {bound}</text>')
    width = LEFT + WIDTH + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<text class="title" x="{LEFT}" y="25">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )
