"""A server under mixed clients for a while: only expected answers, no growth, all pages back.

Clients stream, wait for whole answers, leave in the middle, send what is no request, and read
slowly, all at random from a seed. Memory is the resident memory of server and engine together;
growth is that of the last tenth of the run over the tenth that follows the first fifth, by medians.
The pool is small, so that its pages have all been touched by then and clients meet preemption.

On a CPU in bfloat16 oneDNN keeps what it made for each number of rows, about 1.6 MB, until it has
1,024 of its own pieces; ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 shows whether anything else grows.

Run: python -m benchmarks.soak --seconds 1800
     python -m benchmarks.soak --recipe recipes/toy.yaml --seconds 60 --clients 8
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from .load import HOST
from .online import ask_info, serving
from .results import Figure, new_run, write

WORDS = ["the", "engine", "of", "a", "ship", "turns", "while", "its", "camshaft", "opens", "valves"]
KINDS = {"stream": 40, "whole": 20, "leaves": 15, "several": 5, "malformed": 15, "slow": 5}
"""What clients do, and how often of a hundred."""

MALFORMED: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"[]", 400),
    (b'{"prompt": ""}', 400),
    (b'{"prompt": "a", "temperature": 9}', 400),
    (b'{"prompt": "a", "nonsense": 1}', 400),
    (b'{"prompt": [99999999]}', 400),
    (b'{"prompt": "a", "model": "another"}', 404),
    (b'{"prompt": "\xff"}', 400),
]
MOST_GROWTH = 0.02


@dataclass(slots=True)
class Seen:
    """What happened.

    Attributes:
        counts: Of kind and status; status 0 is a connection that broke.
        unexpected: The first few that should not have been.
        memory: Bytes, a sample at a time.
    """

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def note(self, kind: str, status: int, wanted: int, detail: object = "") -> None:
        """Count an answer; 429 is always expected."""
        self.counts[kind, status] += 1
        if status not in (wanted, 429) and len(self.unexpected) < 20:
            self.unexpected.append(f"{kind}: {status} instead of {wanted} {detail}"[:200])

    @property
    def growth(self) -> float:
        """Of the memory, as a share; see the module."""
        tenth = max(1, len(self.memory) // 10)
        early = statistics.median(self.memory[2 * tenth : 3 * tenth] or self.memory)
        return statistics.median(self.memory[-tenth:]) / early - 1


async def _post(port: int, body: bytes) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a body to /v1/completions; return the status and the connection."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answered = await reader.readuntil(b"\r\n\r\n")
    return int(answered.split(None, 2)[1]), reader, writer


def _body(chance: random.Random, kind: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": " ".join(chance.choices(WORDS, k=chance.randint(3, 60))),
        "max_tokens": chance.randint(1, 48),
        "temperature": chance.choice([0, 0.8]),
        "ignore_eos": True,
        "stream": kind in ("stream", "leaves", "slow"),
    }
    if chance.random() < 0.3:
        body |= {"logprobs": 2, "top_p": 0.9, "seed": chance.randrange(1000)}
    if kind == "several":
        body["n"] = 2
    if kind == "leaves":
        body["max_tokens"] = 200
    return body


async def _act(port: int, chance: random.Random, kind: str, seen: Seen) -> None:
    wanted, content = 200, b""
    if kind == "malformed":
        content, wanted = chance.choice(MALFORMED)
    else:
        content = json.dumps(_body(chance, kind)).encode()
    status, reader, writer = await _post(port, content)
    try:
        if kind == "leaves":
            for _ in range(chance.randint(0, 5)):
                await reader.readline()
        elif kind == "slow":
            for _ in range(40):
                if not await reader.read(64):
                    break
                await asyncio.sleep(0.05)
        else:
            rest = await reader.read()
            if kind == "stream" and status == 200 and b"data: [DONE]" not in rest:
                seen.note(kind, 0, 200, rest[-100:])
        seen.note(kind, status, wanted)
    finally:
        writer.close()


async def _client(port: int, seed: str, until: float, seen: Seen) -> None:
    chance = random.Random(seed)
    while time.monotonic() < until:
        [kind] = chance.choices(list(KINDS), list(KINDS.values()))
        try:
            await asyncio.wait_for(_act(port, chance, kind, seen), 120)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            seen.note(kind, 0, 200, repr(error))


async def _watch(until: float, every: float, seen: Seen) -> None:
    family = psutil.Process().children(recursive=True)
    while time.monotonic() < until:
        await asyncio.sleep(every)
        seen.memory.append(sum(one.memory_info().rss for one in family))


async def _pages_in_use(port: int) -> float:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    lines = [one for one in text.splitlines() if one.startswith("camshaft_kv_pages{")]
    return sum(float(one.rpartition(" ")[2]) for one in lines if 'state="in_use"' in one)


async def _pages_left(port: int) -> float:
    """Return the pages in use when those that left are out of the engine."""
    give_up = time.monotonic() + 10
    while (in_use := await _pages_in_use(port)) and time.monotonic() < give_up:
        await asyncio.sleep(0.1)
    return in_use


async def _canary(port: int) -> bytes:
    body = {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
    status, reader, writer = await _post(port, json.dumps(body).encode())
    answer = await reader.read()
    writer.close()
    text: str = json.loads(answer)["choices"][0]["text"] if status == 200 else str(status)
    return text.encode()


async def soak(wanted: argparse.Namespace) -> tuple[Seen, dict[str, Any]]:
    """Run it.

    Returns:
        What was seen, and what the server says about its engine.
    """
    seen = Seen()
    async with serving(wanted.recipe, [f"cache.memory={wanted.pool}", *wanted.set]) as port:
        info = ask_info(port)
        before = await _canary(port)
        until = time.monotonic() + wanted.seconds
        clients = [
            _client(port, f"{wanted.seed}:{number}", until, seen)
            for number in range(wanted.clients)
        ]
        await asyncio.gather(_watch(until, wanted.seconds / 200, seen), *clients)
        if in_use := await _pages_left(port):
            seen.unexpected.append(f"{in_use:g} pages are in use at the end")
        if (after := await _canary(port)) != before:
            seen.unexpected.append(f"the answer is {after!r} at the end and was {before!r}")
    return seen, info


def figures(seen: Seen, info: dict[str, Any], wanted: argparse.Namespace) -> list[Figure]:
    """Return what is kept of a run."""
    run, clients = new_run("soak"), f"{wanted.clients} clients, {wanted.seconds:g} s"
    values = {
        ("requests", "requests"): sum(seen.counts.values()),
        ("refused_429", "requests"): sum(
            count for (_, status), count in seen.counts.items() if status == 429
        ),
        ("unexpected", "answers"): len(seen.unexpected),
        ("memory_growth", "share"): seen.growth,
    }
    return [
        Figure(
            run_id=run, bench="soak", model=info["model"], workload=clients,
            recipe=wanted.recipe, engine="camshaft", device=info["device"],
            metric=metric, unit=unit, repeats=[round(value, 5)],
        )
        for (metric, unit), value in values.items()
    ]  # fmt: skip


def main() -> int:
    """Run it; a figure a line. Returns 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="in the recipe")
    parser.add_argument("--pool", default="64MiB", help="as cache.memory")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=6)
    wanted = parser.parse_args()
    seen, info = asyncio.run(soak(wanted))
    for (kind, status), count in sorted(seen.counts.items()):
        print(f"{kind:10} {status:4} {count:8}")
    for line in seen.unexpected:
        print(line)
    write(figures(seen, info, wanted), "soak")
    return int(bool(seen.unexpected) or seen.growth > MOST_GROWTH)


if __name__ == "__main__":
    raise SystemExit(main())
