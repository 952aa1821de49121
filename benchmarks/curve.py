"""Latency against load as a small SVG picture, drawn with nothing but text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .load import Point, Spread

WIDTH, HEIGHT = 360, 240
"""Of one panel's plot area, in pixels."""

LEFT, TOP, BELOW = 60, 50, 50
COLOUR = {"p50": "#1f6f8b", "p99": "#c8553d"}

_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}"
    ".grid{stroke:#ddd}.frame{fill:none;stroke:#888}.line{fill:none;stroke-width:2}"
)


def draw(points: Sequence[Point], title: str) -> str:
    """Return the picture: time to first token and inter-token latency, both axes logarithmic.

    Args:
        points: By rate.
        title: Above all.
    """
    panels = [
        _panel(0, "time to first token, ms", points, [one.ttft for one in points]),
        _panel(1, "inter-token latency, ms", points, [one.itl for one in points]),
    ]
    width, height = 2 * (LEFT + WIDTH) + 30, TOP + HEIGHT + BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>{"".join(panels)}</svg>\n'
    )


def _panel(place: int, name: str, points: Sequence[Point], spreads: Sequence[Spread]) -> str:
    left = LEFT + place * (LEFT + WIDTH + 10)
    rates = [one.rate for one in points]
    values = [max(value, 0.01) for one in spreads for value in (one.p50, one.p99)]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values) * 1.001))

    def x(rate: float) -> float:
        span = math.log(rates[-1] / rates[0]) or 1.0
        return left + WIDTH * math.log(rate / rates[0]) / span

    def y(value: float) -> float:
        share = math.log(max(value, 0.01) / low) / math.log(high / low)
        return TOP + HEIGHT * (1 - share)

    parts = [f'<text x="{left}" y="{TOP - 10}">{name}</text>']
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        at = y(10.0**power)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}h{WIDTH}"/>')
        parts.append(
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    parts.extend(
        f'<text x="{x(rate):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{rate:g}</text>'
        for rate in rates
    )
    parts.append(
        f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">'
        "requests a second</text>"
        f'<rect class="frame" x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>'
    )
    for row, (which, colour) in enumerate(COLOUR.items()):
        line = " ".join(
            f"{x(rate):.1f},{y(getattr(one, which)):.1f}"
            for rate, one in zip(rates, spreads, strict=True)
        )
        parts.append(f'<polyline class="line" stroke="{colour}" points="{line}"/>')
        parts.append(
            f'<text x="{left + 8}" y="{TOP + 18 + 16 * row}">'
            f'<tspan fill="{colour}">{which}</tspan></text>'
        )
    return "".join(parts)
