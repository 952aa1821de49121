"""Tiers below a device that holds a tenth of what is used, on the traces of `cache_traces`.

Three engines serve each trace: `unlimited` keeps everything on the device; `recompute` has a pool
for 10 % of the working set and nothing below it; `tiered` has the same pool, host memory for 40 %,
and files for the rest. The bars: tiered serves at least 90 % of the hits of unlimited, its median
time to the first token is at most 1.3 times that of unlimited, and less than that of recompute.

By default no model runs, hits depend on the trace alone, and the bars of times are not judged:
times are what the time model of `replay` makes of them, in which a tier delivers while nothing
computes. With `--real` SmolLM2 runs on this machine.

A pool for a tenth of the documents holds one at a time, so questions about different ones are
answered one after the other, whatever is below it: with answers of two thirds of a second some 1.5
a second. At the 3.3 a second of `cache_traces` a queue would grow until the trace ends, and the
times to the first token would be its length: 9.8 s with tiers, 88 s without, 28 ms unlimited. Here
they come every `GAP_S` seconds instead, and the times are those of requests.

Run: python -m benchmarks.cache_tiers
     python -m benchmarks.cache_tiers --real --over radix
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from .cache_traces import IN_THE_LOOP, NULL, REAL, UNLIMITED, Bench, Case, figures, traces
from .results import Figure, new_run, write
from .traces import working_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .replay import Replayed
    from .traces import Trace

DEVICE, HOST = 10, 40
"""Per cent of the working set."""

GAP_S = 2.0
"""Virtual seconds between questions about documents: three times what one takes."""

LEAST_HITS, MOST_TTFT = 0.9, 1.3
"""Share of the hits, and multiple of the time to the first token, of unlimited."""


def tiers(bench: Bench, case: Case, directory: str, over: str, *, real: bool) -> tuple[str, ...]:
    """Return the overrides that put host memory and files below a pool."""
    whole = working_set(case.trace) * bench.token_bytes(case)
    below = [
        {"use": "memory", "capacity": whole * HOST // 100},
        {"use": "files", "directory": directory, "capacity": 4 * whole},
    ]
    way = ("cache.threads=2", "cache.load=faster") if real else IN_THE_LOOP
    return (f"cache.over={over}", f"cache.tiers={json.dumps(below)}", *way)


def play(bench: Bench, trace: Trace, over: str, *, real: bool) -> dict[str, Replayed]:
    """Replay a trace on all three."""
    done = {
        "unlimited": bench.run(Case(trace, over, "lru", UNLIMITED)),
        "recompute": bench.run(Case(trace, over, "lru", DEVICE)),
    }
    case = Case(trace, "tiered", "lru", DEVICE)
    with tempfile.TemporaryDirectory(prefix="kv-") as directory:
        done["tiered"] = bench.run(case, *tiers(bench, case, directory, over, real=real))
    return done


def missed(done: Mapping[str, Replayed], *, real: bool) -> Iterator[str]:
    """Yield the bars that a trace misses, in words."""
    tiered, unlimited, recompute = (done[one] for one in ("tiered", "unlimited", "recompute"))
    hits = tiered.hit_rate / unlimited.hit_rate
    if hits < LEAST_HITS:
        yield f"hits are {hits:.1%} of unlimited, not {LEAST_HITS:.0%}"
    if not real:
        return
    ttft = tiered.ttft_ms(50) / unlimited.ttft_ms(50)
    if ttft > MOST_TTFT:
        yield f"the first token comes after {ttft:.2f} times unlimited, not {MOST_TTFT}"
    if tiered.ttft_ms(50) >= recompute.ttft_ms(50):
        yield "the first token does not come before it would be recomputed"


def told(trace: Trace, done: Mapping[str, Replayed], *, real: bool) -> Iterator[str]:
    """Yield lines for people."""
    for name, one in done.items():
        yield (
            f"{trace.name:12} {name:10} hits {one.hit_rate:6.1%}; first token "
            f"{one.ttft_ms(50):.0f} and {one.ttft_ms(99):.0f} ms; {one.evicted_pages} evicted"
        )
    counts = done["tiered"].counters
    shown = ("device", "memory", "files")
    tokens = ", ".join(f"{name} {counts[f'hit_tokens_{name}']:.0f}" for name in shown)
    bars = "; ".join(missed(done, real=real))
    yield f"{trace.name:12} hit tokens of tiered: {tokens}; bars: {bars or 'hold'}"


def all_figures(
    trace: Trace, done: Mapping[str, Replayed], over: str, run: str, model: str
) -> Iterator[Figure]:
    """Yield what a trace showed."""
    pools = {"unlimited": UNLIMITED, "recompute": DEVICE, "tiered": DEVICE}
    for name, one in done.items():
        cache = f"tiered({over})" if name == "tiered" else over
        yield from figures(Case(trace, cache, "lru", pools[name]), one, run, model=model)
        for counter, value in one.counters.items():
            if counter.startswith("hit_tokens_"):
                first = next(figures(Case(trace, cache, "lru", pools[name]), one, run, model=model))
                yield replace(first, metric=counter, unit="tokens", repeats=[value])


def main() -> int:
    """Run both traces; a figure a line. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--over", default="paged", help="the cache of the device")
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--real", action="store_true", help="run SmolLM2 in real time")
    asked = parser.parse_args()
    run, model = new_run("cache-tiers"), "smollm2-135m" if asked.real else "none"
    bench = Bench(REAL if asked.real else NULL, page_tokens=asked.page_tokens, real=asked.real)
    found: list[Figure] = []
    is_missed = False
    for trace in traces(real=asked.real, gap_s=GAP_S):
        done = play(bench, trace, asked.over, real=asked.real)
        print("\n".join(told(trace, done, real=asked.real)), flush=True)
        is_missed |= any(True for _ in missed(done, real=asked.real))
        found += all_figures(trace, done, asked.over, run, model)
    write(found, "cache_tiers")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
