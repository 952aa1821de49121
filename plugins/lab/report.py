"""What `engine profile` prints: two tables, or the same as plain data."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from .rates import Rates
    from .roofline import Limit
    from .trace import Operation

_NAME = 64  # columns for the name of an operation; kernels of libraries have longer ones


@dataclass(frozen=True, slots=True)
class Line:
    """Operations that were put together.

    Attributes:
        name: Of an operation or of a part.
        part: Of a step.
        count: How many.
        us: Microseconds, together.
        share: Of the time of all operations.
    """

    name: str
    part: str
    count: int
    us: float
    share: float


@dataclass(frozen=True, slots=True)
class Report:
    """A profile.

    Attributes:
        title: Recipe, workload, device.
        first_step: Number of the first step of the window, from 1.
        steps: Launched in it.
        wall_s: Seconds that it took.
        trace: Where the trace is.
        operations: In it.
        limits: By part.
        rates: Of the device.
    """

    title: str
    first_step: int
    steps: int
    wall_s: float
    trace: Path
    operations: Sequence[Operation]
    limits: Mapping[str, Limit]
    rates: Rates

    @property
    def busy_us(self) -> float:
        """Microseconds of all operations; more than the window's where some run side by side."""
        return sum(one.us for one in self.operations)

    def parts(self) -> list[Line]:
        """Return the time by part, the longest first."""
        return self._lines((one.part, one.part, one) for one in self.operations)

    def kernels(self) -> list[Line]:
        """Return the time by operation and part, the longest first."""
        return self._lines((one.name, one.part, one) for one in self.operations)

    def _lines(self, named: Iterable[tuple[str, str, Operation]]) -> list[Line]:
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for name, part, operation in named:
            times[name, part].append(operation.us)
        whole = self.busy_us or 1.0
        lines = [
            Line(name, part, len(every), sum(every), sum(every) / whole)
            for (name, part), every in times.items()
        ]
        return sorted(lines, key=lambda line: -line.us)

    def as_mapping(self) -> dict[str, Any]:
        """Return plain data for JSON; times in milliseconds."""
        return {
            "profile": self.title,
            "first_step": self.first_step,
            "steps": self.steps,
            "wall_ms": round(self.wall_s * 1e3, 4),
            "busy_ms": round(self.busy_us / 1e3, 4),
            "trace": str(self.trace),
            "rates": {
                "bytes_s": self.rates.bytes_s,
                "gemm_flop_s": self.rates.gemm_flop_s,
            },
            "parts": [self._part(line) for line in self.parts()],
            "operations": [
                {
                    "operation": line.name,
                    "part": line.part,
                    "count": line.count,
                    "ms": round(line.us / 1e3, 4),
                    "share": round(line.share, 4),
                }
                for line in self.kernels()
            ],
        }

    def _part(self, line: Line) -> dict[str, Any]:
        limit = self.limits.get(line.name)
        return {
            "part": line.name,
            "count": line.count,
            "ms": round(line.us / 1e3, 4),
            "share": round(line.share, 4),
            "limit_ms": None if limit is None else round(limit.us / 1e3, 4),
            "of_limit": None if limit is None or not line.us else round(limit.us / line.us, 4),
            "bound": None if limit is None else limit.bound,
        }


def table(report: Report, top: int) -> str:
    """Return the report for people, with the `top` longest operations."""
    data = report.as_mapping()
    rates, wall, busy = data["rates"], data["wall_ms"], data["busy_ms"]
    last = report.first_step + report.steps - 1
    lines = [
        report.title,
        f"steps {report.first_step} to {last}: {wall:.2f} ms, {wall / max(1, report.steps):.3f} ms "
        f"each, {busy:.2f} ms of them in operations ({busy / wall:.0%})",
        f"limits from {rates['bytes_s'] / 1e9:,.1f} GB/s and "
        f"{rates['gemm_flop_s'] / 1e12:,.2f} TFLOP/s, measured now",
        f"trace: {report.trace}",
        "",
        f"{'part':20}{'count':>8}{'ms':>11}{'share':>8}{'limit ms':>11}{'of limit':>10}  bound",
    ]
    for one in data["parts"]:
        limit = (
            ""
            if one["limit_ms"] is None
            else f"{one['limit_ms']:11.3f}{_percent(one['of_limit']):>10}  {one['bound']}"
        )
        lines.append(f"{one['part']:20}{one['count']:8}{one['ms']:11.3f}{one['share']:8.1%}{limit}")
    lines += [
        "",
        f"{'operation':{_NAME}}{'part':20}{'count':>8}{'ms':>11}{'each us':>10}{'share':>8}",
    ]
    lines += [
        f"{line.name[: _NAME - 2]:{_NAME}}{line.part:20}{line.count:8}{line.us / 1e3:11.3f}"
        f"{line.us / line.count:10.2f}{line.share:8.1%}"
        for line in report.kernels()[:top]
    ]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
