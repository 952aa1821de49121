"""Host time of scheduler, cache, loop and packing around an executor that computes nothing.

Of a step in which so many requests decode, and of whole workloads: with prompts, ends and all.

Run: python -m benchmarks.host_step
"""

from __future__ import annotations

import random
import statistics
import time

from camshaft.compose import spare_the_collector
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import WORKLOADS
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine

from .results import Figure, device, new_run, write

PROMPT, STEPS, REPEATS = 64, 100, 5
PAGE_TOKENS, VOCAB = 16, 1000


def engine_for(running: int, tokens: int) -> Engine:
    """Return an engine for so many requests of so many tokens each."""
    return model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        cache=lambda spec: Paged(PagedSettings(), spec),
        pages=running * tokens // PAGE_TOKENS,
        page_tokens=PAGE_TOKENS,
        step_tokens=8192,
        max_running=running,
        debug=False,
    )


def microseconds(running: int) -> list[float]:
    """Return the median step time of each repeat, with so many requests decoding.

    Their lengths differ, so that in each step some of them begin a page.
    """
    engine = engine_for(running, 1280)
    for number in range(running):
        length = PROMPT + number % PAGE_TOKENS
        prompt = [(number * 7 + place) % VOCAB for place in range(length)]
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


def seconds(workload: str) -> list[float]:
    """Return the host time of each of some runs of a workload."""
    jobs = WORKLOADS[workload].make(random.Random(0), VOCAB)
    longest = max(len(one.prompt) + one.outputs for one in jobs) + PAGE_TOKENS
    return [
        measure(engine_for(min(len(jobs), 1024), longest), jobs).seconds for _ in range(REPEATS)
    ]


def main() -> None:
    """Measure 1, 256 and 1,024 running requests, and the workloads with many requests."""
    run = new_run("host-step")
    spare_the_collector()  # as the engine's process does

    def figure(workload: str, metric: str, unit: str, repeats: list[float]) -> Figure:
        return Figure(
            run_id=run,
            bench="host-step",
            model="none",
            workload=workload,
            recipe="continuous + paged + null executor",
            engine="camshaft",
            device=device(),
            metric=metric,
            unit=unit,
            repeats=repeats,
        )

    figures = [
        figure(f"decode-{running}", "host_us_per_step", "us", microseconds(running))
        for running in (1, 256, 1024)
    ]
    figures += [figure(name, "host_s", "s", seconds(name)) for name in ("mixed", "shared", "burst")]
    write(figures, "host_step")


if __name__ == "__main__":
    main()
