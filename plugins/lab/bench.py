"""`engine bench`: a recipe measured on a workload, through the same loop that serves."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft import add_recipe_arguments, recipe_from_arguments
from camshaft.compose import compose, spare_the_collector
from camshaft.contracts.command import Command

from .measure import measure
from .progress import tell
from .workloads import WORKLOADS, find_workload, jobs

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from camshaft import Registry, Settings
    from camshaft.compose import Composed

    from .measure import Measurement
    from .workloads import Job


_COUNTS = (
    ("repeats", 1, "measured runs (1)"),
    ("warmup", 1, "runs before that (1)"),
    ("seed", 0, "of the requests (0)"),
)


class Bench(Command):
    """Runs a workload several times and prints the median run."""

    description: ClassVar[str] = """\
Measure a recipe. All requests of a workload are submitted at once, decoding is greedy, EOS is
ignored, the prefix cache starts cold, and the same loop, scheduler and stop checks run as in
`engine serve`. Printed is the run with the median output rate.

  engine bench recipes/quickstart.yaml --workload cpu-single
  engine bench recipes/quickstart.yaml --workload cpu-batch32 --repeats 5 --json

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
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: Namespace, registry: Registry) -> int:
        """Measure and print."""
        find_workload(args.workload)  # a slip is told before weights are loaded
        recipe = recipe_from_arguments(args, registry)
        composed = compose(recipe, progress=tell)
        spare_the_collector()
        try:
            work = jobs(args.workload, composed.info.vocab, args.seed)
            _run("warm-up", args.warmup, composed, work)
            runs = _run("run", max(1, args.repeats), composed, work)
        finally:
            composed.engine.close()
        rates = [run.n_out / run.seconds for run in runs]
        middle = runs[rates.index(statistics.median_low(rates))]
        report: dict[str, Any] = {
            **middle.summary(),
            "cache": middle.cache.summary(
                [one.total for one in composed.engine.usage()], composed.info.page_bytes
            ),
            "workload": args.workload,
            "seed": args.seed,
            "repeats": [round(rate, 2) for rate in rates],
            "recipe": recipe.name,
            "model": composed.info.model,
            "device": composed.info.device,
            "engine": f"camshaft {composed.info.version}",
        }
        print(json.dumps(report) if args.json else _table(report))
        return 0


def _run(what: str, count: int, composed: Composed, work: Sequence[Job]) -> list[Measurement]:
    """Measure a workload so many times, and say so."""
    runs = []
    for number in range(count):
        tell(f"{what} {number + 1} of {count}")
        runs.append(measure(composed.engine, work))
    return runs


def _table(report: dict[str, Any]) -> str:
    cache = dict(report["cache"])
    for number, pool in enumerate(cache.pop("pools")):
        most, size = pool["most_bytes_in_use"] / 2**20, pool["bytes"] / 2**20
        cache[f"pool {number}"] = f"{most:.1f} of {size:.1f} MiB in use at most"
    flat = {**report, "cache": None, **cache}
    return "\n".join(f"{name:13} {value}" for name, value in flat.items() if value is not None)
