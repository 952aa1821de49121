"""Every scheduler under rising load: how many requests a second are served in time.

Requests are those of a chat service, made shorter so that this machine serves some a second:
prompts are divided by 12, so that all but the longest can be computed in time beside others, and
answers, whose steps take about as long here, by 2. By default time is virtual: steps take what a
formula says that is fitted to this machine's steps first. With `--real` the model runs, at rates of
the grid alone; that takes as long as the requests come, and is for comparison with virtual time at
the same rates. Goodput is the highest rate at which 90 % of the requests get their first token
within 2 s and the others every 100 ms; a fifth of the requests are urgent.

Run: python -m benchmarks.schedulers
     python -m benchmarks.schedulers --step-model 0.014 0.0016 3e-6 0.0006 --dry
     python -m benchmarks.schedulers --real --seeds 1 --requests 50 --rates 1.4 2 --arrivals poisson
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from camshaft import Registry, open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.loop.clock import VirtualClock

from .arrivals import ARRIVALS, draw
from .goodput import TPOT_S, TTFT_S, Drive, Summary
from .lines import draw as picture
from .results import RESULTS, Figure, device, new_run, write
from .step_times import StepModel, measure, timed_executor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Panels = dict[str, dict[str, list[tuple[float, float]]]]

RECIPE = "recipes/quickstart.yaml"
COMMON = ("cache.memory=256MiB", "scheduler.max_running=32", "hardware.threads=1")
PREDICTED = "scheduler.predictor=fitted"
SMALL, LARGE = "scheduler.step_tokens=48", "scheduler.step_tokens=2048"

CASES: dict[str, tuple[str, ...]] = {
    "static": ("scheduler.use=static", "scheduler.batch_size=8", SMALL),
    "dynamic": ("scheduler.use=dynamic", "scheduler.max_batch_size=32", SMALL),
    "continuous, whole": ("scheduler.chunk_tokens=off", LARGE),
    "continuous": (SMALL,),
    "continuous, 80 ms": ("scheduler.step_ms=80", PREDICTED, LARGE),
    "slo": ("scheduler.use=slo", PREDICTED, LARGE),
}
"""Overrides of the quickstart. A step of 64 tokens takes about as long as one of 32 decodes."""

GOOD = 0.9
GRID = tuple(2 ** (place / 2) for place in range(-9, 7))
VOCAB = 49152
WARM_UP = 10**6
"""Seed of requests that only meet what is slow once, and that predictors learn from."""


@dataclass(frozen=True, slots=True)
class Load:
    """What all cases have in common.

    Attributes:
        requests: Most of a run; at low rates there are fewer, those of 200 seconds, but 60.
        scale: Divides the trace's lengths, those of prompts and of answers.
        seeds: A run for each.
    """

    requests: int
    scale: tuple[float, float]
    seeds: tuple[int, ...]

    def count(self, rate: float) -> int:
        """Return the requests of a run at a rate."""
        return min(self.requests, max(60, round(200 * rate)))


class Bench:
    """Runs cases, each on one engine; a run is made once."""

    def __init__(self, load: Load, model: StepModel | None) -> None:
        """Prepare.

        Args:
            load: See there.
            model: How long steps take; None runs the real model in real time.
        """
        self.load = load
        self._model = model
        self.drive = cache(self._drive)
        self.run = cache(self._run)

    def _drive(self, case: str) -> Drive:
        overrides = (*COMMON, *CASES[case])
        if self._model is None:
            drive = Drive(compose(open_recipe(RECIPE, overrides)).engine, VOCAB)
            drive.run(draw("poisson", 8.0, 16, self.load.scale, WARM_UP))
            return drive
        clock = VirtualClock()
        recipe = open_recipe(RECIPE, (*overrides, "engine.executor=null"))
        engine = compose(recipe, clock=clock).engine
        engine.parts.executor = timed_executor(clock, self._model)
        return Drive(engine, VOCAB)

    def _run(self, case: str, arrivals: str, rate: float) -> tuple[Summary, ...]:
        """Return a summary for each seed."""
        load, drive = self.load, self.drive(case)
        count = load.count(rate)
        return tuple(
            Summary.of(drive.run(draw(arrivals, rate, count, load.scale, seed)))
            for seed in load.seeds
        )

    def in_time(self, case: str, arrivals: str, rate: float) -> float:
        """Return the share of requests that are served in time, over all seeds."""
        return statistics.mean(one.in_time for one in self.run(case, arrivals, rate))

    def curve(self, case: str, arrivals: str, rates: Sequence[float]) -> list[tuple[float, float]]:
        """Return (rate, share) until hardly anybody is served in time."""
        points: list[tuple[float, float]] = []
        for rate in rates:
            points.append((rate, self.in_time(case, arrivals, rate)))
            if points[-1][1] < 0.2:
                break
        return points

    def goodput(self, case: str, arrivals: str, rates: Sequence[float]) -> float:
        """Return the highest rate that is good; 0 if the lowest of `rates` is not.

        In virtual time it is found to 4 %, in real time it is one of `rates`.
        """
        good = 0.0
        for rate in rates:
            if self.in_time(case, arrivals, rate) < GOOD:
                break
            good = rate
        if not good or good == rates[-1] or self._model is None:
            return good
        bad = rates[rates.index(good) + 1]
        while bad / good > 1.04:
            middle = math.sqrt(good * bad)
            if self.in_time(case, arrivals, middle) < GOOD:
                bad = middle
            else:
                good = middle
        return good


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim and whether it holds.

    Attributes:
        name: Of the figure.
        unit: Of it.
        value: Found.
        limit: Wanted.
        at_least: Whether more is better.
    """

    name: str
    unit: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def told(self) -> str:
        """Return a line for people."""
        side = "at least" if self.at_least else "at most"
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.name}: {self.value:.3g} {self.unit}, {side} {self.limit:g}: {verdict}"


def bars(bench: Bench, rates: Sequence[float], cases: Sequence[str]) -> Iterator[Bar]:
    """Yield the claims for which the cases were run, on Poisson arrivals."""
    known = {case: bench.goodput(case, "poisson", rates) for case in cases}
    continuous = max((known[one] for one in known if one.startswith("continuous")), default=0.0)
    for other, limit in (("static", 3.0), ("dynamic", 1.5)):
        if continuous and other in known:
            least = known[other] or rates[0]  # if not even that is good, the ratio is larger
            yield Bar(f"goodput of continuous over {other}", "times", continuous / least, limit)
    if {"continuous", "continuous, whole"} <= set(cases):
        yield chunks_against_whole(bench, known["continuous"] or rates[0])
    if {"continuous", "slo"} <= set(cases):
        yield from urgent_in_overload(bench, rates)


def chunks_against_whole(bench: Bench, rate: float) -> Bar:
    """Compare p99 inter-token latencies at a rate that chunks bear."""
    p99 = {
        case: statistics.median(one.itl_p99_s for one in bench.run(case, "poisson", rate))
        for case in ("continuous", "continuous, whole")
    }
    ratio = p99["continuous"] / p99["continuous, whole"]
    return Bar("p99 inter-token latency, chunks over whole prompts", "times", ratio, 0.5, False)


def urgent_in_overload(bench: Bench, rates: Sequence[float]) -> Iterator[Bar]:
    """Compare slo with continuous at the lowest rate where that keeps under 60 % of the urgent."""

    def high(case: str, rate: float) -> float:
        return statistics.mean(one.high_in_time for one in bench.run(case, "poisson", rate))

    def throughput(case: str, rate: float) -> float:
        return statistics.mean(one.out_tok_s for one in bench.run(case, "poisson", rate))

    low, rate = rates[0], rates[-1]
    while rate / low > 1.04:
        middle = math.sqrt(low * rate)
        if high("continuous", middle) < 0.6:
            rate = middle
        else:
            low = middle
    kept = high("continuous", rate)
    yield Bar(f"urgent in time with continuous at {rate:.3g}/s", "share", kept, 0.6, False)
    yield Bar("urgent in time with slo there", "share", high("slo", rate), 0.95)
    ratio = throughput("slo", rate) / throughput("continuous", rate)
    yield Bar("throughput of slo over continuous there", "times", ratio, 0.9)


def figures(
    bench: Bench,
    panels: Panels,
    rates: Sequence[float],
    claims: Sequence[Bar],
    how: str,
) -> Iterator[Figure]:
    """Yield goodput and curve of every case, and what was claimed."""
    run = new_run("schedulers")
    prompts, answers = bench.load.scale
    load = f"azure-2023-conv, prompts/{prompts:g}, answers/{answers:g}"

    def figure(recipe: str, workload: str, metric: str, unit: str, values: list[float]) -> Figure:
        return Figure(
            run_id=run,
            bench="schedulers",
            model="smollm2-135m",
            workload=workload,
            recipe=f"{recipe}; {how}",
            engine="camshaft",
            device=device(),
            metric=metric,
            unit=unit,
            repeats=[round(value, 4) for value in values],
        )

    for kind, curves in panels.items():
        for case, curve in curves.items():
            recipe = f"{case}: {' '.join(CASES[case])}"
            good = bench.goodput(case, kind, rates)
            yield figure(recipe, f"{load}, {kind}", "goodput", "requests/s", [good])
            at = " ".join(f"{rate:.3g}" for rate, _ in curve)
            shares = [share for _, share in curve]
            yield figure(recipe, f"{load}, {kind} at {at}/s", "in_time_by_rate", "share", shares)
    for one in claims:
        yield figure("bars", f"{load}, poisson", one.name, one.unit, [one.value])


def main() -> int:
    """Run every case. Returns 1 if a bar is missed."""
    arguments = _arguments()
    spare_the_collector()
    model, how = None, "real time"
    if arguments.step_model:
        model = StepModel(*arguments.step_model)
    elif not arguments.real:
        model, error = measure(RECIPE, "cache.memory=256MiB", "hardware.threads=1")
        print(f"{model}; mean error {error:.1%}")
    if model is not None:
        how = f"virtual time, {model}"
    load = Load(arguments.requests, tuple(arguments.scale), tuple(range(arguments.seeds)))
    bench, cases = Bench(load, model), arguments.cases
    rates = [one for one in GRID if arguments.rates[0] <= one <= arguments.rates[1]]
    panels: Panels = {}
    for kind in arguments.arrivals:
        panels[kind] = {}
        for case in cases:
            panels[kind][case] = bench.curve(case, kind, rates)
            goodput = bench.goodput(case, kind, rates)
            shares = " ".join(f"{share:.0%} at {rate:.3g}" for rate, share in panels[kind][case])
            print(f"{kind:8} {case:20} goodput {goodput:6.2f} a second; {shares}", flush=True)
    judged = "poisson" in arguments.arrivals and model is not None
    claims = list(bars(bench, rates, cases)) if judged else []
    for one in claims:
        print(one.told())
    if not arguments.dry:
        write(list(figures(bench, panels, rates, claims, how)), "schedulers")
        title = f"Served within {TTFT_S:g} s and {TPOT_S * 1e3:g} ms a token"
        path = RESULTS / ("schedulers_real.svg" if model is None else "schedulers.svg")
        path.write_text(picture(panels, f"{title}; {device()}; {how.partition(',')[0]}", GOOD))
    return int(any(not one.holds for one in claims))


def _arguments() -> argparse.Namespace:
    known = {one.name for one in Registry.discover().components("scheduler")}
    offered = [case for case in CASES if case.split(",")[0] in known]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=offered, choices=offered)
    parser.add_argument("--arrivals", nargs="+", default=list(ARRIVALS), choices=list(ARRIVALS))
    parser.add_argument("--requests", type=int, default=300, help="most of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each point")
    parser.add_argument(
        "--scale", type=float, nargs=2, default=(12.0, 2.0), help="divides prompts, and answers"
    )
    parser.add_argument("--rates", type=float, nargs=2, default=(0.04, 8.0), help="from and to")
    parser.add_argument("--real", action="store_true", help="run the model in real time")
    parser.add_argument(
        "--step-model", type=float, nargs=4, help="seconds of a step, token, context token, row"
    )
    parser.add_argument("--dry", action="store_true", help="print, record nothing")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
