"""Host time of KV managers alone: what a call costs, by page size and number of cached pages.

A prompt of 10,000 tokens is admitted (match and allocate) when all of it is cached (`hit`), when
nothing of it is and pages are free (`miss`), and when cached pages have to go for it (`evict`);
then it is committed and freed. `decode_256` and `decode_1024` are the manager's share of a step in
which so many requests write a token each.

Run: python -m benchmarks.cache_host [--caches radix paged] [--pages 1000 100000] [--page-tokens 16]
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from dataclasses import dataclass, field

from camshaft import Registry
from camshaft.component import Component
from camshaft.compose import spare_the_collector
from camshaft.contracts.cache import CacheSpec, Delta, GroupSpec, KVManager, Prefix
from camshaft.errors import CamshaftError
from camshaft.loop.declare import declared_at_once, granted_at_once

from .results import Figure, device, new_run, write

PROMPT, RUNNING, STEPS, REPEATS = 10_000, (256, 1024), 32, 15
FILLER, VOCAB = 2000, 49_152


def make(cache: Component, eviction: Component, page_tokens: int, pages: int) -> KVManager:
    """Return a manager of one full group."""
    policy = eviction.load()
    clock = itertools.count()
    spec = CacheSpec(
        page_tokens,
        (GroupSpec("full", pages, layers=(0,), page_bytes=64),),
        b"model",
        True,
        lambda: policy(eviction.settings()),
        lambda: float(next(clock)),
    )
    manager: KVManager = cache.load()(cache.settings(), spec)
    return manager


@dataclass(slots=True)
class Bench:
    """Plays the core for one manager, and keeps times in microseconds by name."""

    cache: KVManager
    page_tokens: int
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    times: dict[str, list[float]] = field(default_factory=dict)
    _last: int = 0

    def prompt(self, length: int) -> list[int]:
        """Return random tokens."""
        return [self.chance.randrange(VOCAB) for _ in range(length)]

    def fill(self, pages: int) -> None:
        """Cache so many pages of other requests."""
        per = -(-FILLER // self.page_tokens)
        for _ in range(-(-pages // per)):
            self.run(self.prompt(per * self.page_tokens))

    def run(self, tokens: list[int], name: str = "") -> None:
        """Serve a request of one step; keep its times if it has a name."""
        self._last += 1
        uid = step = self._last
        prefix, cache = Prefix(tokens), self.cache
        begin = time.perf_counter()
        hit = cache.match(prefix, len(tokens) - 1)
        matched = time.perf_counter()
        delta = cache.allocate(uid, prefix, len(tokens), hit)
        admitted = time.perf_counter()
        assert isinstance(delta, Delta), delta
        assert hit.ready > 0 or name != "hit", "what is cached was not found"
        cache.commit(uid, len(tokens), step)
        committed = time.perf_counter()
        cache.free(uid, step)
        cache.fence(step)
        freed = time.perf_counter()
        if name:
            for what, seconds in (
                (f"{name}_match", matched - begin),
                (f"{name}_admit", admitted - begin),
                (f"{name}_commit", committed - admitted),
                (f"{name}_free", freed - committed),
            ):
                self.times.setdefault(what, []).append(seconds * 1e6)

    def decode(self, running: int) -> None:
        """Time the calls of steps in which requests grow by a token each, as the loop makes them.

        Their lengths differ, so that in each step some of them need pages, and some declare theirs.
        """
        size, cache = self.page_tokens, self.cache
        granted, declared = granted_at_once(size), declared_at_once(size)
        prefixes = []
        for number in range(running):
            self._last += 1
            prefixes.append((self._last, Prefix(self.prompt(64 + number % declared))))
        for uid, prefix in prefixes:
            cache.allocate(uid, prefix, -(-len(prefix.tokens) // granted) * granted)
            cache.commit(uid, len(prefix.tokens), self._last)
        for _ in range(STEPS):
            self._last += 1
            step, seconds = self._last, 0.0
            for uid, prefix in prefixes:
                prefix.tokens.append(step)
                known = len(prefix.tokens)
                begin = time.perf_counter()
                if known % granted == 1:
                    cache.allocate(uid, prefix, known + granted - 1)
                if known % declared == 0:
                    cache.commit(uid, known, step)
                seconds += time.perf_counter() - begin
            self.times.setdefault(f"decode_{running}", []).append(seconds * 1e6)
        for uid, _ in prefixes:
            cache.free(uid, self._last)
        cache.fence(self._last)


def measure(
    cache: Component, eviction: Component, page_tokens: int, pages: int
) -> dict[str, list[float]]:
    """Return the times of a manager that has cached so many pages, in microseconds by name."""
    need = -(-PROMPT // page_tokens)
    growing = max(RUNNING) * (128 // page_tokens + STEPS + 96)
    bench = Bench(
        make(cache, eviction, page_tokens, pages + (REPEATS + 3) * need + growing), page_tokens
    )
    document = bench.prompt(PROMPT)
    bench.run(document)
    bench.fill(pages)
    for _ in range(REPEATS):
        bench.run([*document], "hit")
        bench.run(bench.prompt(PROMPT), "miss")
    for running in RUNNING:
        bench.decode(running)
    full = Bench(make(cache, eviction, page_tokens, max(pages, 2 * need)), page_tokens)
    full.fill(max(pages, 2 * need))
    for _ in range(REPEATS):
        full.run(full.prompt(PROMPT), "evict")
    return {**bench.times, **full.times}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--caches", nargs="+", default=["radix", "paged", "token_table"])
    parser.add_argument("--eviction", default="lru")
    parser.add_argument("--pages", nargs="+", type=int, default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--page-tokens", nargs="+", type=int, default=[16, 1])
    asked = parser.parse_args()
    run, registry = new_run("cache-host"), Registry.discover()
    eviction = registry.get("eviction", asked.eviction)
    spare_the_collector()  # as the engine's process does
    figures = []
    for name, page_tokens, pages in itertools.product(asked.caches, asked.page_tokens, asked.pages):
        try:
            times = measure(registry.get("cache", name), eviction, page_tokens, pages)
        except CamshaftError as error:
            print(f"{name}: {error}")
            continue
        figures += [
            Figure(
                run_id=run,
                bench="cache-host",
                model="none",
                workload=f"page-{page_tokens}-{pages}",
                recipe=f"{name} + {asked.eviction}",
                engine=f"camshaft {name}",
                device=device(),
                metric=f"{what}_us",
                unit="us",
                repeats=[round(one, 1) for one in repeats],
            )
            for what, repeats in times.items()
        ]
    write(figures, "cache_host")


if __name__ == "__main__":
    main()
