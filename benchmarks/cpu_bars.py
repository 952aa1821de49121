"""What is claimed on a CPU, and the table that says whether it holds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .peers.work import is_better

if TYPE_CHECKING:
    from collections.abc import Mapping

Found = dict[tuple[str, str], dict[tuple[str, str], list[float]]]
"""Repeats by (workload, metric), then by (engine, recipe)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim.

    Attributes:
        workload: See `peers.work`.
        metric: Likewise.
        first: What must hold: a ratio to the best peer, or the figure itself.
        is_ratio: Which of them.
        goal: Of the figure itself, on the machine that the bars were set on.
    """

    workload: str
    metric: str
    first: float
    is_ratio: bool
    goal: float

    def holds(self, ours: float, best_peer: float | None) -> bool | None:
        """Return whether it does; None where it cannot be said."""
        if self.is_ratio and best_peer is None:
            return None
        value = ours / best_peer if self.is_ratio and best_peer else ours
        return value == self.first or is_better(self.metric, value, self.first)


BARS = (
    Bar("cpu-single", "out_tok_s", 1.2, True, 230),
    Bar("cpu-batch8", "out_tok_s", 1.2, True, 500),
    Bar("cpu-batch32", "out_tok_s", 1.2, True, 1200),
    Bar("cpu-prompt512", "ttft_ms", 0.85, True, 130),
    Bar("cpu-prompt1500", "ttft_ms", 0.85, True, 500),
    Bar("cpu-start", "start_s", 6.0, False, 3.5),
    Bar("cpu-start", "pss_mb", 900.0, False, 600),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A bar beside what was found.

    Attributes:
        bar: See there.
        best: (figure, recipe) of each engine's best configuration.
        holds: See `Bar.holds`.
        ratio: Ours to the best peer; None without one.
    """

    bar: Bar
    best: dict[str, tuple[float, str]]
    holds: bool | None
    ratio: float | None


def rows(found: Found, ours: str) -> list[Row]:
    """Return a row for each bar that was measured.

    Args:
        found: What was measured.
        ours: Our name among the engines.
    """
    made = []
    for bar in BARS:
        by_recipe = found.get((bar.workload, bar.metric), {})
        best = best_of(bar.metric, by_recipe)
        if ours not in best:
            continue
        peers = [value for engine, (value, _) in best.items() if engine != ours]
        peer = None
        for value in peers:
            peer = value if peer is None or is_better(bar.metric, value, peer) else peer
        mine = best[ours][0]
        ratio = None if peer is None else mine / peer
        made.append(Row(bar, best, bar.holds(mine, peer), ratio))
    return made


def best_of(
    metric: str, by_recipe: Mapping[tuple[str, str], list[float]]
) -> dict[str, tuple[float, str]]:
    """Return the best median of each engine, and the recipe that it belongs to."""
    found: dict[str, tuple[float, str]] = {}
    for (engine, recipe), values in by_recipe.items():
        value = statistics.median(values)
        if engine not in found or is_better(metric, value, found[engine][0]):
            found[engine] = (value, recipe)
    return found


def draw(made: list[Row], engines: list[str]) -> Table:
    """Return the table.

    Args:
        made: From `rows`.
        engines: Ours first.
    """
    table = Table()
    for title in ("workload", "metric", *engines, "ratio", "first bar", "", "goal"):
        table.add_column(title, justify="left" if title in {"workload", "metric"} else "right")
    for row in made:
        figures = [_told(row.best[name][0]) if name in row.best else "-" for name in engines]
        bar = row.bar
        verdict = {True: "holds", False: "MISSED", None: "no peer"}[row.holds]
        table.add_row(
            bar.workload,
            bar.metric,
            *figures,
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{bar.first:g}{' x' if bar.is_ratio else ''}",
            verdict,
            f"{bar.goal:g}{_reached(row, engines[0])}",
        )
    return table


def show(made: list[Row], engines: list[str]) -> None:
    """Print the table, and which configuration is whose best."""
    console = Console(width=120)
    console.print(draw(made, engines))
    for row in made:
        told = "; ".join(f"{name}: {recipe}" for name, (_, recipe) in row.best.items())
        console.print(f"{row.bar.workload} {row.bar.metric}: {told}", highlight=False)


def _told(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}"


def _reached(row: Row, ours: str) -> str:
    value = row.best[ours][0]
    return " reached" if is_better(row.bar.metric, value, row.bar.goal) else ""
