"""Host time of planning: 256 requests run, 100 or 10,000 wait, and some end and start in each step.

Around an executor that computes nothing, with a paged cache; only the scheduler's `plan` is timed.

Run: python -m benchmarks.plan_time
     python -m benchmarks.plan_time --schedulers continuous slo
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from camshaft import Registry
from camshaft.compose import spare_the_collector
from camshaft.contracts.predictor import StepTimePredictor
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.testing.engines import make_request, model_free_engine

from .results import Figure, device, new_run, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.contracts.predictor import StepShape
    from camshaft.contracts.scheduler import Plan, Scheduler, SchedulerLimits, View
    from camshaft.loop.engine import Engine

RUNNING, PROMPT, STEPS = 256, 200, 300
WAITING = (100, 10_000)
PAGE_TOKENS, TENANTS, PREFIXES = 16, 50, 20

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {"batch_size": RUNNING}),
    "dynamic": ("dynamic", {"max_batch_size": RUNNING}),
    "continuous": ("continuous", {}),
    "continuous-step_ms": ("continuous", {"step_ms": 20}),
    "continuous-tenants": ("continuous", {"order": "tenants"}),
    "continuous-prefix": ("continuous", {"order": "prefix"}),
    "continuous-buckets": ("continuous", {"length_buckets": (100, 150, 200)}),
    "slo": ("slo", {}),
}
"""What is measured: a component and its settings."""

BARS = {"continuous": 150.0, "slo": 500.0}
"""Most microseconds that a plan should take with 10,000 waiting."""


class Linear(StepTimePredictor):
    """Predicts by a fixed formula: what is measured is who asks, not who answers."""

    def __init__(self) -> None:
        """Nothing is to be known."""

    def predict(self, shape: StepShape) -> float:
        """Return seconds."""
        return 0.004 + 2e-5 * shape.tokens + 1e-8 * shape.context

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn nothing."""


@dataclass(slots=True)
class Timed:
    """Stands before a scheduler and notes how long each plan took.

    Attributes:
        asked: The scheduler's own `plan`.
        us: Microseconds of each plan.
    """

    asked: Callable[[View], Plan]
    us: list[float] = field(default_factory=list)

    def plan(self, view: View) -> Plan:
        """Ask and time."""
        start = time.perf_counter()
        plan = self.asked(view)
        self.us.append((time.perf_counter() - start) * 1e6)
        return plan


def scheduler(case: str, limits: SchedulerLimits) -> Scheduler:
    """Build what a case names."""
    name, settings = CASES[case]
    component = Registry.discover().get("scheduler", name)
    built: Scheduler = component.load()(component.settings(**settings), limits)
    return built


def engine_for(case: str) -> tuple[Engine, Timed]:
    """Return an engine, and what notes its plans."""
    engine = model_free_engine(
        lambda limits: scheduler(case, limits),
        cache=lambda spec: Paged(PagedSettings(), spec),
        pages=RUNNING * 32,
        page_tokens=PAGE_TOKENS,
        step_tokens=2048,
        max_running=RUNNING,
        debug=False,
    )
    engine.view._predictor = Linear()  # no recipe composes this engine
    timed = Timed(engine.parts.scheduler.plan)
    engine.parts.scheduler.plan = timed.plan  # type: ignore[method-assign]
    return engine, timed


def submit(engine: Engine, number: int) -> None:
    """Ask for something: of one of some tenants, beginning as some others do."""
    head = [number % PREFIXES] * (PAGE_TOKENS * 2)
    length = PROMPT // 2 + number * 7 % PROMPT
    tail = [(number * 13 + place) % 990 for place in range(length - len(head))]
    engine.submit(
        make_request(
            f"r{number}",
            head + tail,
            max_tokens=60 + number * 11 % 80,
            tenant=f"t{number % TENANTS}",
            priority=number % 3,
            ttft_slo_s=60.0,
        )
    )


def microseconds(case: str, waiting: int, steps: int = STEPS) -> list[float]:
    """Return how long each of some plans took, with so many waiting throughout."""
    engine, timed = engine_for(case)
    number = 0
    while number < RUNNING + waiting:
        submit(engine, number)
        number += 1
    for _ in range(40):  # until all slots are taken
        engine.step()
    timed.us.clear()
    while len(timed.us) < steps:
        while len(engine.view.waiting) < waiting:
            submit(engine, number)
            number += 1
        engine.step()
    return timed.us


def main() -> int:
    """Measure every scheduler that is installed. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = {one.name for one in Registry.discover().components("scheduler")}
    offered = [case for case, (name, _) in CASES.items() if name in known]
    parser.add_argument("--schedulers", nargs="+", default=offered, choices=offered)
    parser.add_argument("--dry", action="store_true", help="print, record nothing")
    arguments = parser.parse_args()
    run, missed, figures = new_run("plan-time"), 0, []
    spare_the_collector()
    for case in arguments.schedulers:
        for waiting in WAITING:
            us = microseconds(case, waiting)
            p50, p99 = statistics.median(us), statistics.quantiles(us, n=100)[98]
            bar = BARS.get(case, 0.0) if waiting == max(WAITING) else 0.0
            missed += bool(bar and p50 > bar)
            told = f"; bar {bar:g}: {'holds' if p50 <= bar else 'MISSED'}" if bar else ""
            print(f"{case:20} {waiting:6} waiting: p50 {p50:7.1f} us, p99 {p99:7.1f} us{told}")
            figures += [
                Figure(
                    run_id=run,
                    bench="plan-time",
                    model="none",
                    workload=f"{RUNNING}-running-{waiting}-waiting",
                    recipe=case,
                    engine="camshaft",
                    device=device(),
                    metric=f"plan_us_{name}",
                    unit="us",
                    repeats=[round(value, 2)],
                )
                for name, value in (("p50", p50), ("p99", p99))
            ]
    if not arguments.dry:
        write(figures, "plan_time")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
