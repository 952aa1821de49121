"""Tiers of a real device: rates to the host and back, and what they save until the first token.

Pages are moved by the executor as the cache would have them moved, while nothing computes. Then a
document is asked about: when nobody has it, when the device has it, and when only host memory has
it. At last a request that generates is preempted and comes back at once, by swap and by recompute,
after the device has lost its pages; with tiers under it, recompute finds whole units there, too.

Run: python -m benchmarks.tiers_cuda
     python -m benchmarks.tiers_cuda --recipe recipes/toy.yaml --tokens 80   (says nothing)
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft import open_recipe
from camshaft.compose import compose
from camshaft.contracts.moves import PageMove
from camshaft.testing.engines import make_request

from .results import Figure, new_run, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from camshaft.compose import Composed
    from camshaft.contracts.scheduler import PreemptMode
    from camshaft.loop.engine import Engine
    from camshaft.request import RequestOutput

SETTINGS = (
    "cache.use=tiered",
    "cache.load=always",
    "cache.unit_tokens=1",  # a unit is a page
    "scheduler.max_running=8",
)
ON_A_CARD = ("cache.memory=8GiB", "cache.host_memory=8GiB", "cache.staging=2GiB")
TRAY_BYTES = 64 * 2**20
MOST_TRAYS = 16
QUESTION = 16
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for."""

    recipe: str
    tokens: int
    repeats: int
    overrides: Sequence[str]


def rates(engine: Engine, repeats: int) -> Iterator[tuple[str, float]]:
    """Yield GB/s of exports and loads of all layers, before anything is cached."""
    executor, group = engine.parts.executor, engine.parts.cache.spec.groups[0]  # type: ignore[attr-defined]
    pages = max(1, min(TRAY_BYTES // group.page_bytes, group.pages // MOST_TRAYS))
    count = max(1, min(MOST_TRAYS, group.pages // pages))
    trays = [executor.tray(0, pages) for _ in range(count)]
    order = random.Random(0).sample(range(1, group.pages + 1), count * pages)
    tickets = iter(range(-(10**9), 0))
    for turn in range(repeats + 1):
        for way in ("export", "load"):
            moves = [
                PageMove(next(tickets), 0, order[at * pages : (at + 1) * pages], tray)
                for at, tray in enumerate(trays)
            ]
            start, left = time.perf_counter(), count
            executor.move(*((moves, ()) if way == "export" else ((), moves)))
            while left:
                left -= len(executor.moved())
            seconds = time.perf_counter() - start
            if turn:  # the first one touches the memory for the first time
                yield f"{way}_gb_s", count * pages * group.page_bytes / seconds / 1e9


def turn(engine: Engine) -> list[RequestOutput]:
    """Do a turn, and rest if it had to wait: stores' threads need the interpreter meanwhile."""
    outputs = engine.step()
    if engine.wake_at is not None:
        engine.clock.rest(engine.wake_at)
    return outputs


def first_token(engine: Engine, name: str, prompt: Sequence[int]) -> tuple[float, int]:
    """Serve a request; return milliseconds to its first token, and its tokens from the cache."""
    engine.submit(make_request(name, prompt, 4, ignore_eos=True))
    start, first, cached = time.perf_counter(), 0.0, 0
    while name in engine.states:
        for one in turn(engine):
            if one.token_ids and not first:
                first = time.perf_counter() - start
            cached = one.cached_tokens
            assert one.finish in (None, "length"), one.message
    return first * 1e3, cached


def settle(engine: Engine, exported: float) -> None:
    """Let the engine go on until it has exported so many pages, and nothing is on its way."""
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until:
        engine.step()
        counts = engine.cache_counters()
        if counts["exported_pages"] >= exported and not engine.has_work:
            return
        time.sleep(0.001)
    raise TimeoutError(f"{exported} pages did not leave within {SETTLE_S} s")


def document(engine: Engine, chance: random.Random, asked: Asked) -> Iterator[tuple[str, float]]:
    """Yield milliseconds to the first token of questions about one new document."""
    vocab, size = engine.parts.vocab, engine.parts.page_tokens
    text = [chance.randrange(3, vocab) for _ in range(asked.tokens)]

    def ask(way: str) -> tuple[str, float]:
        question = [chance.randrange(3, vocab) for _ in range(QUESTION)]
        ms, cached = first_token(engine, f"{way} {chance.random()}", text + question)
        held = 0 if way == "recompute" else asked.tokens // size * size
        assert held - size < cached <= held, f"{way}: {cached} tokens came from a cache"
        return way, ms

    before = engine.cache_counters()["exported_pages"]
    yield ask("recompute")
    settle(engine, before + asked.tokens // size)
    yield ask("device")
    engine.reset_cache(tiers=False)
    yield ask("host memory")


def resumed(engine: Engine, chance: random.Random, asked: Asked, mode: PreemptMode) -> float:
    """Return milliseconds from a preemption to the next token that was not on its way already."""
    name = f"{mode} {chance.random()}"
    text = [chance.randrange(3, engine.parts.vocab) for _ in range(asked.tokens)]
    engine.submit(make_request(name, text, 64, ignore_eos=True))
    state = engine.states[name]
    while state.outputs < 40:
        turn(engine)
    start = time.perf_counter()
    engine.committer.preempt(state, "planned", mode)
    while state.in_flight:
        turn(engine)
    engine.reset_cache(tiers=False)
    before = state.outputs
    while state.outputs == before:
        turn(engine)
    ms = (time.perf_counter() - start) * 1e3
    while name in engine.states:
        turn(engine)
    return ms


def measure(one: Composed, asked: Asked) -> dict[tuple[str, str, str], list[float]]:
    """Return what was measured: by workload, metric and unit."""
    engine, chance = one.engine, random.Random(1)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for metric, value in rates(engine, asked.repeats):
        found["pages", metric, "GB/s"].append(value)
    for number in range(asked.repeats + 1):
        for way, ms in document(engine, chance, asked):
            if number:  # the first one compiles
                found[f"document {asked.tokens}, {way}", "ttft_ms", "ms"].append(ms)
    modes: tuple[PreemptMode, ...] = ("swap", "recompute")
    for number in range(asked.repeats + 1):
        for mode in modes:
            ms = resumed(engine, chance, asked, mode)
            if number:
                found[f"resume {asked.tokens}, {mode}", "resume_ms", "ms"].append(ms)
    return found


def main() -> None:
    """Measure, and record a figure a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="benchmarks/recipes/qwen3-0.6b.yaml")
    parser.add_argument("--tokens", type=int, default=4000, help="of a document")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    given = parser.parse_args()
    asked = Asked(given.recipe, given.tokens, given.repeats, given.overrides)
    card = ON_A_CARD if asked.recipe.endswith("qwen3-0.6b.yaml") else ()
    start = time.perf_counter()
    one = compose(open_recipe(asked.recipe, (*SETTINGS, *card, *asked.overrides)))
    print(f"ready after {time.perf_counter() - start:.1f} s on {one.info.device}", flush=True)
    found = measure(one, asked)
    counts = one.engine.cache_counters()
    one.engine.close()
    run = new_run("tiers-cuda")
    figures = [
        Figure(
            run_id=run,
            bench="tiers-cuda",
            model=one.info.model,
            workload=workload,
            recipe=" ".join((asked.recipe, *SETTINGS, *card, *asked.overrides)),
            engine="camshaft",
            device=one.info.device,
            metric=metric,
            unit=unit,
            repeats=values,
        )
        for (workload, metric, unit), values in found.items()
    ]
    write(figures, "tiers_cuda")
    print({name: value for name, value in counts.items() if name.startswith(("swaps", "loads"))})


if __name__ == "__main__":
    main()
