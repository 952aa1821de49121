"""Nano-batches against whole steps on one CUDA device: throughput, step times, and a timeline.

One engine runs a workload under `continuous` and under several cuts of `nano_batch`, one after the
other, first once to record what is missing. Each case has its own budget of tokens a step: of the
recipe's, whole prompts fill a step; of 2,048, prompts come in chunks beside all that decode. Beside
tokens a second it writes the mean time of steps that hold prompts, and for a step in nano-batches
how long kernels of two streams ran at once, with a picture of two layers. The trace behind it goes
to --trace.

Run: python -m benchmarks.nano_batch
     python -m benchmarks.nano_batch --most-outputs 256 --repeats 1 --check 2
     python -m benchmarks.nano_batch --cases "continuous 2048" "phases 2048" --workload burst
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from camshaft import Registry, open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.plugins.lab.measure import measure, submit
from camshaft.plugins.lab.rates import measured_rates
from camshaft.plugins.lab.trace import read_trace
from camshaft.plugins.lab.workloads import Job, jobs

from .eager import NEAR_TIE, Eager, check_some
from .lanes import bars, beside, draw, spans, window
from .results import RESULTS, Figure, new_run, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.compose import Composed
    from camshaft.contracts.scheduler import Scheduler, StepReport
    from camshaft.loop.engine import Engine
    from camshaft.plugins.lab.measure import Measurement
    from camshaft.step import Step

RECIPE = Path(__file__).parent / "recipes" / "llama-8b.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """A scheduler.

    Attributes:
        name: Of the component.
        settings: Of it.
        step_tokens: Its limit; 0 is the recipe's.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    step_tokens: int = 0


def _halves(least: int) -> dict[str, Any]:
    return {"shares": (0.5, 0.5), "minimum_tokens": least}


CASES = {
    "continuous": Case("continuous"),
    "halves": Case("nano_batch", _halves(1024)),
    "continuous 2048": Case("continuous", step_tokens=2048),
    "halves 2048": Case("nano_batch", _halves(1024), 2048),
    "phases 2048": Case("nano_batch", {"by": "phase", "minimum_tokens": 512}, 2048),
    "halves of all 2048": Case("nano_batch", _halves(128), 2048),
}
"""The last one cuts steps that only decode, too."""

TIMELINE = "phases 2048"


def main() -> None:
    """Run the cases; a figure a line."""
    arguments = _arguments()
    composed = compose(open_recipe(arguments.recipe, arguments.set))
    spare_the_collector()
    work = _work(arguments, composed.info.vocab)
    book, faults = _Book(composed, arguments), list[str]()
    eager = Eager(composed.drawing) if arguments.check else None
    for name in arguments.cases:
        watch = _Watch(scheduler_of(CASES[name], composed.engine))
        use(composed.engine, watch.scheduler)
        measure(composed.engine, work)
        watch.clear()
        before = composed.engine.stats.nano_steps
        runs = [measure(composed.engine, work) for _ in range(arguments.repeats)]
        book.rates(name, runs, watch, composed.engine.stats.nano_steps - before)
        if eager is not None:
            checked = check_some(eager, work, runs[-1].answers, arguments.check)
            worst = max(one.worst for one in checked)
            book.write(name, "checked_gap", "steps of the dtype", [one.worst for one in checked])
            if worst > NEAR_TIE:
                faults.append(f"{name}: a token lies {worst:.1f} steps below the reference's")
    if arguments.timeline in arguments.cases:
        _timeline(composed, work, arguments, book)
    composed.engine.close()
    if faults:
        raise SystemExit("\n".join(faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--most-outputs", type=int, default=0, help="of a request; 0 is all (0)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1007)
    parser.add_argument("--check", type=int, default=8, help="requests to compare eagerly (8)")
    parser.add_argument("--timeline", default=TIMELINE, metavar="NAME", help="the case it shows")
    parser.add_argument("--trace", type=Path, default=Path("nano_batch.json.gz"))
    parser.add_argument("--picture", type=Path, default=RESULTS / "nano_batch.svg")
    return parser.parse_args()


def _work(arguments: argparse.Namespace, vocab: int) -> list[Job]:
    work, most = jobs(arguments.workload, vocab, arguments.seed), arguments.most_outputs
    return [Job(one.prompt, min(one.outputs, most)) if most else one for one in work]


def scheduler_of(case: Case, engine: Engine) -> Scheduler:
    """Build the scheduler of a case within the limits of an engine."""
    component = Registry.discover().get("scheduler", case.name)
    limits = engine.parts.limits
    tokens = min(case.step_tokens or limits.step_tokens, limits.step_tokens)
    built: Scheduler = component.load()(
        component.settings(**case.settings), SchedulerLimits(tokens, limits.max_running)
    )
    return built


def use(engine: Engine, scheduler: Scheduler) -> None:
    """Let an engine at rest run with another scheduler."""
    assert not engine.has_work, "a scheduler knows the requests that came while it was there"
    engine.parts.scheduler = engine.committer.scheduler = scheduler


class _Watch:
    """Follows the steps of a scheduler that hold prompts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.prompt_steps: list[float] = []
        told = scheduler.on_step

        def on_step(report: StepReport) -> None:
            told(report)
            if report.shape.tokens > report.shape.decode_tokens:
                self.prompt_steps.append(report.seconds)

        scheduler.on_step = on_step  # type: ignore[method-assign]

    def clear(self) -> None:
        """Forget what was seen so far."""
        self.prompt_steps.clear()


class _Book:
    """Writes figures of one run."""

    def __init__(self, composed: Composed, arguments: argparse.Namespace) -> None:
        self._run = new_run("nano_batch")
        self._model = composed.info.model
        most = f", {arguments.most_outputs} out at most" if arguments.most_outputs else ""
        self._workload = arguments.workload + most
        self._device = composed.info.device

    def write(self, case: str, metric: str, unit: str, repeats: Sequence[float]) -> None:
        """Write a figure of a case."""
        figure = Figure(
            run_id=self._run,
            bench="nano_batch",
            model=self._model,
            workload=self._workload,
            recipe=case,
            engine="camshaft",
            device=self._device,
            metric=metric,
            unit=unit,
            repeats=[round(one, 4) for one in repeats],
        )
        print(f"{case:20}", end=" ")
        write([figure], "nano_batch")

    def rates(self, case: str, runs: list[Measurement], watch: _Watch, nano_steps: int) -> None:
        """Write what the runs of a case brought."""
        self.write(case, "out_tok_s", "tok/s", [one.n_out / one.seconds for one in runs])
        self.write(case, "tpot_ms", "ms", [statistics.mean(one.tpot_ms) for one in runs])
        seconds = statistics.mean(watch.prompt_steps)
        self.write(case, "prompt_step_ms", "ms", [1e3 * seconds])
        self.write(case, "prompt_steps", "steps a run", [len(watch.prompt_steps) / len(runs)])
        self.write(case, "nano_steps", "steps a run", [nano_steps / len(runs)])


def _timeline(
    composed: Composed, work: Sequence[Job], arguments: argparse.Namespace, book: _Book
) -> None:
    """Profile one step in nano-batches, write how much of it overlapped, and draw two layers."""
    engine, case = composed.engine, CASES[arguments.timeline]
    use(engine, scheduler_of(case, engine))
    rows = _profiled(engine, work, arguments.trace)
    if not torch.cuda.is_available() or len(rows) < 2:
        print("no step in nano-batches was seen on a CUDA device: no picture")
        return
    rates = measured_rates(composed.drawing.hardware.device)
    found = bars(read_trace(arguments.trace), rows, rates.gemm_flop_s / rates.bytes_s)
    for lane in range(len(rows)):
        own = [bar for bar in found if bar.lane == lane]
        busy = sum(last - first for first, last in spans(own))
        book.write(arguments.timeline, f"lane_{lane}_busy_ms", "ms", [busy / 1e3])
    book.write(arguments.timeline, "beside_ms", "ms", [beside(found) / 1e3])
    book.write(arguments.timeline, "step_ms", "ms", [max(bar.end for bar in found) / 1e3])
    layers = composed.drawing.checkpoint.config.layers
    title = f"{composed.info.model} on {composed.info.device}: two layers of a step of " + (
        " + ".join(f"{count} tokens" for count in rows)
    )
    names = [f"{count} tokens" for count in rows]
    picture = draw(found, title, names, window(found, 2 / layers))
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(picture, encoding="utf-8")
    print(f"wrote {arguments.picture} and {arguments.trace}")


def _profiled(engine: Engine, work: Sequence[Job], trace: Path) -> list[int]:
    """Profile a step with many decodes beside prompts; return the tokens of its lanes."""
    engine.reset_cache()
    submit(engine, work)
    seen: list[list[int]] = []
    launch = engine.parts.executor.launch

    def noted(step: Step) -> None:
        parts: list[int] = []
        if len(step.nano_batch):
            lengths = np.diff(step.starts)
            parts = np.bincount(step.nano_batch, weights=lengths).astype(int).tolist()
        seen.append(sorted(parts, reverse=True))
        launch(step)

    engine.parts.executor.launch = noted  # type: ignore[method-assign]
    try:
        _run_to_the_middle(engine, seen, len(work))
        on_device = torch.cuda.is_available()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profiler:
            engine.step()
            if on_device:
                torch.cuda.synchronize()
    finally:
        engine.parts.executor.launch = launch  # type: ignore[method-assign]
    trace.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(trace))
    rows = seen[-1] if seen else []
    while engine.has_work:
        engine.step()
    return rows


def _run_to_the_middle(engine: Engine, seen: list[list[int]], requests: int) -> None:
    """Step until three quarters of the requests have begun and a step was cut, or all is done."""
    while engine.has_work:
        engine.step()
        has_begun = 4 * len(engine.view.waiting) <= requests
        if has_begun and seen and len(seen[-1]) > 1:
            return


if __name__ == "__main__":
    main()
