"""Host time of scheduler, cache, loop and packing around an executor that computes nothing.

Of a step in which so many requests decode, with every manager, and of whole workloads: with
prompts, ends and all.

Run: python -m benchmarks.host_step [--caches paged token_table] [--repeats 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from camshaft import Registry
from camshaft.compose import spare_the_collector
from camshaft.contracts.cache import CacheSpec, KVManager
from camshaft.loop.engine import Engine
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import WORKLOADS
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.testing.engines import make_request, model_free_engine

from .results import Figure, device, new_run, write

PROMPT, STEPS, REPEATS = 64, 100, 5
PAGES = {"paged": (16, 1), "radix": (16, 1), "token_table": (1,)}
"""Tokens of a page with which each manager is measured."""

RUNNING = (1, 256, 1024)
VOCAB = 1000


def engine_for(cache: str, page_tokens: int, running: int, tokens: int) -> Engine:
    """Return an engine for so many requests of so many tokens each."""
    chosen = Registry.discover().get("cache", cache)

    def manager(spec: CacheSpec) -> KVManager:
        made: KVManager = chosen.load()(chosen.settings(), spec)
        return made

    return model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        cache=manager,
        pages=running * tokens // page_tokens,
        page_tokens=page_tokens,
        step_tokens=8192,
        max_running=running,
        debug=False,
    )


def microseconds(cache: str, page_tokens: int, running: int, repeats: int) -> list[float]:
    """Return the median step time of each repeat, with so many requests decoding.

    Their lengths differ, so that in each step some of them begin a page.
    """
    engine = engine_for(cache, page_tokens, running, 1280)
    for number in range(running):
        length = PROMPT + number % 16
        prompt = [(number * 7 + place) % VOCAB for place in range(length)]
        engine.submit(make_request(f"r{number}", prompt, max_tokens=1000))
    while len(engine.view.running) < running:
        engine.step()
    medians = []
    for _ in range(repeats):
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            engine.step()
            times.append((time.perf_counter() - start) * 1e6)
        medians.append(statistics.median(times))
    return medians


def seconds(workload: str, repeats: int) -> list[float]:
    """Return the host time of each of some runs of a workload."""
    jobs = WORKLOADS[workload].make(random.Random(0), VOCAB)
    longest = max(len(one.prompt) + one.outputs for one in jobs) + 16
    return [
        measure(engine_for("paged", 16, min(len(jobs), 1024), longest), jobs).seconds
        for _ in range(repeats)
    ]


def main() -> None:
    """Measure 1, 256 and 1,024 running requests, and the workloads with many requests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--caches", nargs="+", default=list(PAGES), choices=PAGES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    asked = parser.parse_args()
    run = new_run("host-step")
    spare_the_collector()  # as the engine's process does

    def figure(cache: str, workload: str, metric: str, unit: str, values: list[float]) -> Figure:
        return Figure(
            run_id=run,
            bench="host-step",
            model="none",
            workload=workload,
            recipe=f"continuous + {cache} + null executor",
            engine=f"camshaft {cache}",
            device=device(),
            metric=metric,
            unit=unit,
            repeats=values,
        )

    figures = []
    for cache in asked.caches:
        for page_tokens in PAGES[cache]:
            for running in RUNNING:
                times = microseconds(cache, page_tokens, running, asked.repeats)
                workload = f"page-{page_tokens}-decode-{running}"
                figures.append(figure(cache, workload, "host_us_per_step", "us", times))
    if "paged" in asked.caches:
        figures += [
            figure("paged", name, "host_s", "s", seconds(name, asked.repeats))
            for name in ("mixed", "shared", "burst")
        ]
    write(figures, "host_step")


if __name__ == "__main__":
    main()
