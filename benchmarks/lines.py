"""Shares against rates as a small SVG picture, drawn with nothing but text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Lines = Mapping[str, Sequence[tuple[float, float]]]

WIDTH, HEIGHT, LEFT, TOP, BELOW, LEGEND = 300, 220, 50, 50, 50, 150
"""Of one panel's plot area and the space around, in pixels."""

COLOURS = ("#8a8a8a", "#b08900", "#1f6f8b", "#5aa469", "#c8553d", "#6b4fa0", "#333333")

_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}"
    ".grid{stroke:#ddd}.bar{stroke:#888;stroke-dasharray:4 3}"
    ".frame{fill:none;stroke:#888}.line{fill:none;stroke-width:2}"
)


def draw(panels: Mapping[str, Lines], title: str, bar: float) -> str:
    """Return the picture: a panel beside the other, rates logarithmic, shares from 0 to 1.

    Args:
        panels: By name; each holds (rate, share) by the name of a line, rates ascending. All
            panels have the same lines.
        title: Above all.
        bar: A share to mark.
    """
    names = list(next(iter(panels.values())))
    width = len(panels) * (LEFT + WIDTH + 10) + LEGEND
    height = TOP + HEIGHT + BELOW
    parts = [
        _panel(LEFT + place * (LEFT + WIDTH + 10), name, lines, bar)
        for place, (name, lines) in enumerate(panels.items())
    ]
    for row, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = TOP + 20 + 18 * row
        parts.append(f'<path class="line" stroke="{colour}" d="M{width - LEGEND + 15} {y}h20"/>')
        parts.append(f'<text x="{width - LEGEND + 40}" y="{y + 4}">{escape(name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _panel(left: float, name: str, lines: Lines, bar: float) -> str:
    rates = sorted({rate for line in lines.values() for rate, _ in line})
    span = math.log(rates[-1] / rates[0]) or 1.0

    def x(rate: float) -> float:
        return left + WIDTH * math.log(rate / rates[0]) / span

    def y(share: float) -> float:
        return TOP + HEIGHT * (1 - share)

    parts = [f'<text x="{left}" y="{TOP - 10}">{escape(name)}</text>']
    for tenths in range(0, 11, 2):
        at = y(tenths / 10)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}h{WIDTH}"/>')
        parts.append(
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{tenths * 10} %</text>'
        )
    parts.append(f'<path class="bar" d="M{left} {y(bar):.1f}h{WIDTH}"/>')
    parts.extend(
        f'<text x="{x(rate):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{rate:.3g}</text>'
        for rate in rates[:: max(1, len(rates) // 5)]
    )
    parts.append(
        f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">'
        "requests a second</text>"
        f'<rect class="frame" x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>'
    )
    for line, colour in zip(lines.values(), COLOURS, strict=False):
        points = " ".join(f"{x(rate):.1f},{y(share):.1f}" for rate, share in line)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{points}"/>')
    return "".join(parts)
