"""Figures as JSON lines: one figure a line, so that any tool can read, join and plot them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. Peers are figures of the same `run_id` with another `engine`.

    Attributes:
        run_id: Names the run that figures may be compared within.
        bench: The benchmark's name.
        model: Such as `smollm2-135m`.
        workload: What was run.
        recipe: Of ours; the configuration in words for a peer.
        engine: `camshaft`, `transformers`, ...
        device: Its own name.
        metric: Such as `out_tok_s`.
        unit: Of the value.
        repeats: The raw values; `value` is their median unless given.
        value: The figure.
    """

    run_id: str
    bench: str
    model: str
    workload: str
    recipe: str
    engine: str
    device: str
    metric: str
    unit: str
    repeats: list[float]
    value: float | None = None
    commit: str = field(default_factory=lambda: commit())
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    command: str = field(default_factory=lambda: command())

    def line(self) -> str:
        """Return the figure as a line of JSON."""
        value = statistics.median(self.repeats) if self.value is None else self.value
        return json.dumps({**asdict(self), "value": round(value, 4)})


def write(figures: list[Figure], name: str) -> Path:
    """Append figures to `results/NAME.jsonl` and print them."""
    path = RESULTS / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for one in figures:
            file.write(one.line() + "\n")
            middle = statistics.median(one.repeats) if one.value is None else one.value
            print(f"{one.engine:14} {one.workload:16} {one.metric:12} {middle:12.3f} {one.unit}")
    return path


def new_run(bench: str) -> str:
    """Return an id for a run."""
    return f"{bench}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}"


def command() -> str:
    """Return the command that was run, by the module's name and not by where it lies."""
    module = f"benchmarks.{Path(sys.argv[0]).stem}"
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def commit() -> str:
    """Return the commit that is measured, with `+` when files differ from it.

    Where only the files were copied, `CAMSHAFT_COMMIT` names it.
    """
    return os.environ.get("CAMSHAFT_COMMIT") or _checked_out()


@cache  # a run writes thousands of figures
def _checked_out() -> str:
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def versions() -> dict[str, str]:
    """Return the versions that matter for a figure."""
    return dict(_installed())


@cache
def _installed() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("camshaft", "torch", "transformers", "triton", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def device() -> str:
    """Return the processor's name and how many cores this process may use."""
    from camshaft.plugins.hardware.components import CpuSettings
    from camshaft.plugins.hardware.cpu import CpuBackend

    facts = CpuBackend(CpuSettings()).facts()
    return f"{facts.name} ({facts.threads} threads)"
