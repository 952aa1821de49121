"""What HTTP costs: streams through `engine serve` beside the same ones in this process.

Both engines are there from the start and take turns, so that they meet the same machine. Prompts
are text, so tokenising counts; answers are streamed, so detokenising does. Each stream asks one
thing after the other, for answers of different lengths, so that first tokens are waited for while
others run; those of the very first requests, which all come at once, do not count. Nor does the
first round of each way, which warms up.

Run: python -m benchmarks.front_cost
     python -m benchmarks.front_cost --recipe recipes/cuda.yaml --streams 32 --repeats 9
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from camshaft import LLM
from camshaft.request import SamplingParams

from .load import HOST
from .online import ask_info, serving
from .results import Figure, new_run, write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WORDS = ["the", "engine", "of", "a", "ship", "turns", "while", "its", "camshaft", "opens", "valves"]
MOST_SHARE, MOST_MS = 0.05, 3.0
"""Of throughput, and of the first token's median: more is told by the exit code."""


@dataclass(frozen=True, slots=True)
class Round:
    """Some streams that began together.

    Attributes:
        out_tok_s: Tokens a second, from the begin to the last token.
        ttft_ms: Median of the first tokens.
    """

    out_tok_s: float
    ttft_ms: float

    @classmethod
    def of(cls, firsts: list[float], seconds: float, tokens: int) -> Round:
        """Summarise times in seconds."""
        return cls(tokens / seconds, statistics.median(firsts) * 1e3)


Job = tuple[str, int]
"""A prompt, and how many tokens are to be generated."""


def jobs(streams: int, each: int, words: int, outputs: int, seed: int) -> list[list[Job]]:
    """Return what each stream asks: texts that no other round has, so that no cache serves them.

    Answers are of half to one and a half times `outputs` tokens.
    """
    chance = random.Random(seed)

    def one() -> Job:
        length = chance.randint(outputs // 2, outputs + outputs // 2)
        return " ".join(chance.choices(WORDS, k=words)), length

    return [[one() for _ in range(each)] for _ in range(streams)]


async def together(streams: list[list[Job]], ask: Callable[[str, int], Awaitable[float]]) -> Round:
    """Let all streams go, with `ask`, which returns the seconds to a first token."""
    start = time.perf_counter()

    async def one(stream: list[Job]) -> list[float]:
        return [await ask(*job) for job in stream][1:]

    firsts = await asyncio.gather(*map(one, streams))
    seconds = time.perf_counter() - start
    tokens = sum(length for stream in streams for _, length in stream)
    return Round.of([first for stream in firsts for first in stream], seconds, tokens)


async def here(llm: LLM, streams: list[list[Job]]) -> Round:
    """Stream in this process."""

    async def ask(text: str, outputs: int) -> float:
        params = SamplingParams(max_tokens=outputs, temperature=0, ignore_eos=True)
        start, first = time.perf_counter(), 0.0
        async for delta in llm.agenerate(text, params):
            first = first or (time.perf_counter() - start if delta.token_ids else 0.0)
        return first

    return await together(streams, ask)


async def over_http(port: int, streams: list[list[Job]]) -> Round:
    """Stream through the server; each stream is read as it comes and kept unparsed."""

    async def ask(text: str, outputs: int) -> float:
        start = time.perf_counter()
        fields = {"prompt": text, "max_tokens": outputs, "temperature": 0, "ignore_eos": True}
        body = json.dumps(fields | {"stream": True}).encode()
        reader, writer = await asyncio.open_connection(HOST, port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await reader.readuntil(b"data: ")
        first = time.perf_counter() - start
        rest = await reader.read()
        writer.close()
        if b"data: [DONE]" not in rest:
            raise RuntimeError(f"a stream broke: {rest[-200:]!r}")
        return first

    return await together(streams, ask)


async def compare(wanted: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[Round]]]:
    """Take turns; return what the server says of its engine, and the rounds that count."""
    found: dict[str, list[Round]] = {"in process": [], "http": []}
    async with serving(wanted.recipe, wanted.set) as port:
        info = ask_info(port)
        with LLM(wanted.recipe, wanted.set) as llm:
            for number in range(wanted.repeats + 1):
                for way, rounds in found.items():
                    sizes = wanted.streams, wanted.each, wanted.words, wanted.output
                    asked = jobs(*sizes, 2 * number + (way == "http"))
                    is_here = way == "in process"
                    rounds.append(await (here(llm, asked) if is_here else over_http(port, asked)))
    return info, {way: rounds[1:] for way, rounds in found.items()}


def main() -> int:
    """Compare; a figure a line. Returns 1 if HTTP costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="in the recipe")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--words", type=int, default=60, help="of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer, on average")
    parser.add_argument("--each", type=int, default=4, help="requests of a stream in a round")
    parser.add_argument("--repeats", type=int, default=5)
    wanted = parser.parse_args()
    info, rounds = asyncio.run(compare(wanted))
    run, figures = new_run("front_cost"), []
    for way, every in rounds.items():
        for metric, unit in (("out_tok_s", "tok/s"), ("ttft_ms", "ms")):
            figures.append(
                Figure(
                    run_id=run,
                    bench="front_cost",
                    model=info["model"],
                    workload=f"{wanted.streams} streams",
                    recipe=wanted.recipe,
                    engine=f"camshaft {way}",
                    device=info["device"],
                    metric=metric,
                    unit=unit,
                    repeats=[round(getattr(one, metric), 3) for one in every],
                )
            )
    write(figures, "front_cost")
    share, late_ms = cost(rounds)
    print(f"HTTP costs {share:.1%} of throughput and {late_ms:.2f} ms to the first token")
    return int(share > MOST_SHARE or late_ms > MOST_MS)


def cost(rounds: dict[str, list[Round]]) -> tuple[float, float]:
    """Return what HTTP costs: a share of throughput, and milliseconds of the first token."""
    speed = {
        way: statistics.median(one.out_tok_s for one in every) for way, every in rounds.items()
    }
    first = {way: statistics.median(one.ttft_ms for one in every) for way, every in rounds.items()}
    return 1 - speed["http"] / speed["in process"], first["http"] - first["in process"]


if __name__ == "__main__":
    raise SystemExit(main())
