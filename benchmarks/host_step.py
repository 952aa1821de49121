"""Host time of a step: scheduler, cache, loop and packing around an executor that computes nothing.

Run: python -m benchmarks.host_step
"""

from __future__ import annotations

import statistics
import time

from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine

from .results import Figure, device, new_run, write

PROMPT, STEPS, REPEATS = 64, 100, 5


def microseconds(running: int) -> list[float]:
    """Return the median step time of each repeat, with so many requests decoding."""
    engine = model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        cache=lambda spec: Paged(PagedSettings(), spec),
        pages=running * 80,
        page_tokens=16,
        step_tokens=8192,
        max_running=running,
        debug=False,
    )
    for number in range(running):
        prompt = [(number * 7 + place) % 1000 for place in range(PROMPT)]
        engine.submit(make_request(f"r{number}", prompt, max_tokens=1000))
    while len(engine.view.running) < running:
        engine.step()
    medians = []
    for _ in range(REPEATS):
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            engine.step()
            times.append((time.perf_counter() - start) * 1e6)
        medians.append(statistics.median(times))
    return medians


def main() -> None:
    """Measure 1, 256 and 1,024 running requests."""
    run = new_run("host-step")
    figures = [
        Figure(
            run_id=run,
            bench="host-step",
            model="none",
            workload=f"decode-{running}",
            recipe="continuous + paged + null executor",
            engine="camshaft",
            device=device(),
            metric="host_us_per_step",
            unit="us",
            repeats=microseconds(running),
        )
        for running in (1, 256, 1024)
    ]
    write(figures, "host_step")


if __name__ == "__main__":
    main()
