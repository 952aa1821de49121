"""What HTTP costs: streams through `engine serve` beside the same ones in this process.

Both engines are there from the start and take turns, so that they meet the same machine. Prompts
are text, so tokenising counts; answers are streamed, so detokenising does. The first round of each
warms up and is not counted.

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
from typing import Any

from camshaft import LLM
from camshaft.request import SamplingParams

from .load import HOST
from .online import ask_info, serving
from .results import Figure, new_run, write

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


def prompts(count: int, words: int, seed: int) -> list[str]:
    """Return texts that no other round has, so that no cache serves them."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=words)) for _ in range(count)]


async def here(llm: LLM, texts: list[str], outputs: int) -> Round:
    """Stream in this process."""
    params = SamplingParams(max_tokens=outputs, temperature=0, ignore_eos=True)
    start = time.perf_counter()

    async def one(text: str) -> float:
        first = 0.0
        async for delta in llm.agenerate(text, params):
            first = first or (time.perf_counter() - start if delta.token_ids else 0.0)
        return first

    firsts = await asyncio.gather(*map(one, texts))
    return Round.of(firsts, time.perf_counter() - start, outputs * len(texts))


async def over_http(port: int, texts: list[str], outputs: int) -> Round:
    """Stream through the server; each stream is read as it comes and kept unparsed."""
    bodies = [
        json.dumps(
            {"prompt": text, "max_tokens": outputs, "temperature": 0, "ignore_eos": True}
            | {"stream": True}
        ).encode()
        for text in texts
    ]
    start = time.perf_counter()

    async def one(body: bytes) -> float:
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

    firsts = await asyncio.gather(*map(one, bodies))
    return Round.of(firsts, time.perf_counter() - start, outputs * len(texts))


async def compare(wanted: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[Round]]]:
    """Take turns; return what the server says of its engine, and the rounds that count."""
    found: dict[str, list[Round]] = {"in process": [], "http": []}
    async with serving(wanted.recipe, wanted.set) as port:
        info = ask_info(port)
        with LLM(wanted.recipe, wanted.set) as llm:
            for number in range(wanted.repeats + 1):
                for way, rounds in found.items():
                    texts = prompts(wanted.streams, wanted.words, 2 * number + (way == "http"))
                    run = (
                        here(llm, texts, wanted.output)
                        if way == "in process"
                        else over_http(port, texts, wanted.output)
                    )
                    rounds.append(await run)
    return info, {way: rounds[1:] for way, rounds in found.items()}


def main() -> int:
    """Compare; a figure a line. Returns 1 if HTTP costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="in the recipe")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--words", type=int, default=60, help="of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
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
