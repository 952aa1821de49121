"""`engine profile`: where the time of a workload goes, and how far each part is from its limit."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from camshaft import add_recipe_arguments, recipe_from_arguments
from camshaft.compose import compose, spare_the_collector
from camshaft.contracts.command import Command
from camshaft.errors import CamshaftError

from .measure import measure, submit
from .progress import tell
from .ranges import Ranges
from .rates import measured_rates
from .report import Report, table
from .roofline import limits
from .subject import executor_of, shape_of
from .trace import operations, read_trace
from .workloads import WORKLOADS, find_workload, jobs

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from camshaft import Registry, Settings
    from camshaft.compose import Composed
    from camshaft.loop.engine import Engine

    from .workloads import Job

_COUNTS = (
    ("steps", 64, "steps to profile; 0 is all that are left (64)"),
    ("skip", 0, "steps of the run before that (0)"),
    ("warmup", 1, "whole runs before that (1)"),
    ("seed", 0, "of the requests (0)"),
    ("top", 15, "operations to list (15)"),
)


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of the loop that are profiled: `steps` of them behind the first `skip`; 0 is all."""

    skip: int
    steps: int


class Profile(Command):
    """Runs a workload under torch's profiler."""

    description: ClassVar[str] = """\
Run a workload, profile some of its steps, write a trace for chrome://tracing or ui.perfetto.dev,
and print where the time went: by part of a step beside the least time that its bytes and operations
take on this device (both rates are measured in the same call), then by kernel or operation.

  engine profile recipes/quickstart.yaml --workload cpu-single
  engine profile recipes/quickstart.yaml --workload cpu-batch32 --skip 10 --steps 20 --json

In a step that was recorded as a graph a kernel's part is told by its name and its place in the
layer. The profiler slows the host down: compare device times, and take rates from `engine bench`.

workloads:
""" + "".join(f"  {name:15} {one.summary}\n" for name, one in WORKLOADS.items())

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        parser.add_argument("--workload", required=True, metavar="NAME", help="one of those above")
        for name, default, text in _COUNTS:
            parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
        parser.add_argument(
            "--trace",
            type=Path,
            metavar="FILE",
            help="where the trace goes (profile-WORKLOAD.json.gz in this folder)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: Namespace, registry: Registry) -> int:
        """Profile, write and print."""
        find_workload(args.workload)  # a slip is told before weights are loaded
        path = args.trace or Path(f"profile-{args.workload}.json.gz")
        if path.suffix != ".gz":
            raise CamshaftError(f"--trace {path}: the trace is compressed; call it {path}.gz")
        recipe = recipe_from_arguments(args, registry)
        composed = compose(recipe, progress=tell)
        spare_the_collector()
        try:
            report = self._profile(composed, args, path)
        finally:
            composed.engine.close()
        print(json.dumps(report.as_mapping()) if args.json else table(report, args.top))
        return 0

    def _profile(self, composed: Composed, args: Namespace, path: Path) -> Report:
        executor = executor_of(composed, "profile")
        ranges = Ranges().of(executor)
        work = jobs(args.workload, composed.info.vocab, args.seed)
        for number in range(args.warmup):
            tell(f"warm-up {number + 1} of {args.warmup}")
            measure(composed.engine, work)
        tell("recording")
        window = Window(max(0, args.skip), max(0, args.steps))
        wall_s = profile_steps(composed, work, window, path, ranges)
        drawing = composed.drawing
        dtype: torch.dtype = getattr(torch, drawing.recipe.model.dtype)
        tell("measuring what the device can do")
        rates = measured_rates(drawing.hardware.device, dtype)
        return Report(
            title=f"{drawing.recipe.name}: {args.workload} on {composed.info.device}",
            first_step=window.skip + 1,
            steps=len(ranges.steps),
            wall_s=wall_s,
            trace=path,
            operations=operations(read_trace(path)),
            limits=limits(ranges, shape_of(composed, executor), rates),
            rates=rates,
        )


def profile_steps(
    composed: Composed, work: Sequence[Job], window: Window, path: Path, ranges: Ranges
) -> float:
    """Run a workload to its end, with the window's steps under the profiler.

    Args:
        composed: The engine.
        work: Its requests.
        window: Which steps.
        path: Where the trace goes.
        ranges: Is left with the work of the profiled steps.

    Returns:
        Seconds that the window took.

    Raises:
        CamshaftError: The workload ends before the window begins.
    """
    engine, device = composed.engine, composed.drawing.hardware.device
    engine.reset_cache()
    submit(engine, work)
    for _ in range(window.skip):
        engine.step()
    if not engine.has_work:
        raise CamshaftError(f"the workload has no more than {window.skip} steps; lower --skip")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.device(device).type != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    _wait(device)
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        ranges.steps.clear()
        start = time.perf_counter()
        _step(engine, window.steps)
        _wait(device)
        wall_s = time.perf_counter() - start
    steps = list(ranges.steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    _step(engine, 0)
    ranges.steps[:] = steps
    return wall_s


def _step(engine: Engine, most: int) -> None:
    """Do up to `most` turns of the loop; 0 is all that are left."""
    done = 0
    while engine.has_work and (not most or done < most):
        engine.step()
        done += 1


def _wait(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.cuda.synchronize(device)
