"""Every KV manager with every eviction policy on traces: hits, pages, and the host's time.

By default no model runs: the null executor answers at once, time is virtual, and hits depend on
the trace alone. With `--real` SmolLM2 runs on this machine, on traces of 24 requests, and the times
to the first token are measured; otherwise they are what the time model of `replay` makes of the
order of things. Pools are shares of the trace's working set: all tokens at
the end, those in common counted once. `unlimited` is twice the working set.

A case takes some 5 seconds of a core, and two run at a time. The host's times are those that the
loop's thread had a core for, so that others on the machine do not count.

Run: python -m benchmarks.cache_traces
     python -m benchmarks.cache_traces --caches paged --evictions lru --pools 100 40 10
     python -m benchmarks.cache_traces --real --evictions lru
"""

from __future__ import annotations

import argparse
import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from camshaft import Registry, open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.loop.clock import Clock, VirtualClock

from .replay import Replay, Replayed
from .results import Figure, device, new_run, write
from .traces import Trace, multi_turn, shared_documents, working_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from camshaft.compose import Composed

UNLIMITED = 200
"""Per cent of the working set at which nothing has to be evicted."""

POOLS = (UNLIMITED, 40)

JOBS = 2
"""Cases at a time, where time is virtual."""

BAR = 0.95
"""Share of the ideal hit rate that a manager with an unlimited pool should reach ..."""

BARRED = ("paged", "radix")
"""... if it is one of these."""

SEED, VOCAB, REAL_VOCAB = 1, 320, 49152

NULL = (
    "recipes/toy.yaml",
    (
        "engine.executor=null",
        "engine.debug=false",
        "model.config.max_position_embeddings=32768",
        "scheduler.step_tokens=2048",
        "scheduler.max_running=64",
    ),
)
REAL = ("recipes/quickstart.yaml", ())

IN_THE_LOOP = ("cache.threads=0", "cache.settle_s=0", "cache.load=always")
"""What makes a cache with tiers go the same way each time, in virtual time."""

OF_MANAGER = {"token_table": ("cache.page_tokens=1",), "tiered": IN_THE_LOOP}
"""What a manager insists on, or the benchmark on for it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        trace: What is asked.
        cache: Name of the manager.
        eviction: Name of the policy.
        pool: Per cent of the working set.
    """

    trace: Trace
    cache: str
    eviction: str
    pool: int

    @property
    def workload(self) -> str:
        """Name the trace and the pool."""
        pool = "unlimited" if self.pool == UNLIMITED else f"{self.pool}%"
        return f"{self.trace.name}@{pool}"

    @property
    def recipe(self) -> str:
        """Name the manager and the policy."""
        return f"{self.cache}+{self.eviction}"


class Bench:
    """Runs cases on engines that differ in their cache alone."""

    def __init__(self, recipe: tuple[str, Sequence[str]], *, page_tokens: int, real: bool) -> None:
        """Prepare.

        Args:
            recipe: Its file, and what to change in it.
            page_tokens: In a page, where a manager does not insist on another number.
            real: Run the model in real time.
        """
        self._file, self._overrides = recipe
        self._page_tokens = page_tokens
        self._real = real

    def run(self, case: Case, *more: str) -> Replayed:
        """Replay a case on a new engine, whose recipe `more` overrides."""
        tokens = working_set(case.trace) * case.pool // 100
        # a request alone must fit, with a page to begin
        tokens = max(tokens, case.trace.longest + self._page_tokens)
        memory = (tokens + self._page_tokens) * self.token_bytes(case)
        one = self._compose(case, memory, *more)
        spare_the_collector()
        try:
            return Replay(one.engine, case.trace).run()
        finally:
            one.engine.close()
            gc.unfreeze()  # or no engine would ever be collected

    def token_bytes(self, case: Case) -> int:
        """Return the bytes of a token, from the plan of an engine that computes nothing."""
        info = self._compose(case, 64 << 20, "engine.executor=null").info
        return sum(info.page_bytes) // info.page_tokens

    def _compose(self, case: Case, memory: int, *more: str) -> Composed:
        overrides = (
            *self._overrides,
            f"cache.use={case.cache}",
            f"cache.page_tokens={self._page_tokens}",
            *OF_MANAGER.get(case.cache, ()),
            f"cache.eviction={case.eviction}",
            f"cache.memory={memory}",
            *more,
        )
        clock = Clock() if self._real else VirtualClock()
        return compose(open_recipe(self._file, overrides), clock=clock)


def traces(*, real: bool, gap_s: float = 0.3) -> tuple[Trace, Trace]:
    """Return both traces; for a real model with few and short requests.

    Args:
        real: Whether it is for one.
        gap_s: Mean seconds between questions about documents if it is not.
    """
    if not real:
        return multi_turn(SEED, VOCAB), shared_documents(SEED, VOCAB, gap_s=gap_s)
    return (
        multi_turn(
            SEED,
            REAL_VOCAB,
            conversations=8,
            turns=3,
            added=(20, 60),
            outputs=(8, 24),
            think_s=5.0,
        ),
        shared_documents(
            SEED,
            REAL_VOCAB,
            tokens=400,
            questions=24,
            question=(16, 32),
            outputs=(8, 24),
            gap_s=2.0,
        ),
    )


def figures(case: Case, done: Replayed, run: str, *, model: str) -> Iterator[Figure]:
    """Yield what a case showed."""
    ideal = done.ideal_hit_rate
    values: dict[tuple[str, str], float] = {
        ("hit_rate", "share"): done.hit_rate,
        ("hit_rate_of_ideal", "share"): done.hit_rate / ideal if ideal else 1.0,
        ("pages_per_request", "pages"): done.pages_per_request,
        ("evicted_pages", "pages"): done.evicted_pages,
        ("preemptions", "requests"): done.preemptions,
    }
    values["ttft_ms_p50", "ms"], values["ttft_ms_p99", "ms"] = done.ttft_ms(50), done.ttft_ms(99)
    if model == "none":
        values["host_us_per_step", "us"] = done.step_us
        values["host_us_per_admission", "us"] = done.admission_us
    for (metric, unit), value in values.items():
        yield Figure(
            run_id=run,
            bench="cache-traces",
            model=model,
            workload=case.workload,
            recipe=case.recipe,
            engine="camshaft",
            device=device(),
            metric=metric,
            unit=unit,
            repeats=[round(float(value), 4)],
        )


def cases(
    both: Sequence[Trace], caches: Sequence[str], evictions: Sequence[str], pools: Sequence[int]
) -> Iterator[Case]:
    """Yield every case; with an unlimited pool a policy has nothing to do, so one is enough."""
    for trace in both:
        for cache in caches:
            for pool in pools:
                for eviction in evictions if pool < UNLIMITED else evictions[:1]:
                    yield Case(trace, cache, eviction, pool)


def holds(case: Case, done: Replayed) -> bool | None:
    """Return whether a case meets its bar; None if it has none."""
    if case.pool < UNLIMITED or case.cache not in BARRED:
        return None
    return done.hit_rate >= BAR * done.ideal_hit_rate


def told(case: Case, done: Replayed) -> str:
    """Return a line for people."""
    ratio = done.hit_rate / max(done.ideal_hit_rate, 1e-9)
    said = {None: "", True: f"; bar {BAR:.0%}: holds", False: f"; bar {BAR:.0%}: MISSED"}
    return (
        f"{case.recipe:22} {case.workload:28} hits {done.hit_rate:6.1%}, {ratio:6.1%} of the "
        f"ideal; {done.pages_per_request:5.1f} pages a request, {done.evicted_pages:6} evicted; "
        f"first token {done.ttft_ms(50):.0f} and {done.ttft_ms(99):.0f} ms; "
        f"{done.step_us:5.0f} us a step, {done.admission_us:5.0f} an admission"
        f"{said[holds(case, done)]}"
    )


class Found(NamedTuple):
    """What a case showed; much less than a `Replayed`, which holds every prompt.

    Attributes:
        line: For people.
        figures: To be written.
        holds: Whether it meets its bar, if it has one.
    """

    line: str
    figures: list[Figure]
    holds: bool | None


def find(bench: Bench, run: str, model: str, case: Case) -> Found:
    """Run a case."""
    done = bench.run(case)
    return Found(told(case, done), list(figures(case, done, run, model=model)), holds(case, done))


def measure(
    bench: Bench, wanted: Sequence[Case], run: str, model: str, *, jobs: int
) -> Iterator[Found]:
    """Run cases in processes, so many at a time, and yield what they show in their order."""
    one = partial(find, bench, run, model)
    if jobs == 1:
        yield from map(one, wanted)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, wanted)


def installed(kind: str) -> list[str]:
    """Return the names of the components of a kind, `lru` first."""
    names = [one.name for one in Registry.discover().components(kind)]
    return sorted(names, key=lambda name: (name != "lru", name))


def main() -> int:
    """Run every case; a figure a line. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--caches", nargs="+", default=installed("cache"))
    parser.add_argument("--evictions", nargs="+", default=installed("eviction"))
    parser.add_argument(
        "--pools", nargs="+", type=int, default=POOLS, help="per cent of the working set"
    )
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--real", action="store_true", help="run SmolLM2 in real time")
    parser.add_argument("--jobs", type=int, help=f"cases at a time: {JOBS}, or 1 with --real")
    asked = parser.parse_args()
    if asked.real and (asked.jobs or 1) > 1:
        parser.error("--real needs the machine for one case at a time: leave --jobs out")
    run, model = new_run("cache-traces"), "smollm2-135m" if asked.real else "none"
    recipe = REAL if asked.real else NULL
    bench = Bench(recipe, page_tokens=asked.page_tokens, real=asked.real)
    wanted = list(cases(traces(real=asked.real), asked.caches, asked.evictions, asked.pools))
    found = []
    for one in measure(bench, wanted, run, model, jobs=asked.jobs or (1 if asked.real else JOBS)):
        print(one.line, flush=True)
        found.append(one)
    write([figure for one in found for figure in one.figures], "cache_traces")
    return int(any(one.holds is False for one in found))


if __name__ == "__main__":
    sys.exit(main())
