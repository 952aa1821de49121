"""Open-loop load on an OpenAI-compatible server: requests come when they come, ready or not.

Arrivals are a Poisson process, drawn from a seed beforehand. A request's clock starts when it was
due, not when it could be sent, so a client that falls behind cannot flatter the server. Answers are
streamed; during the run only arrival times and bytes are kept, and read afterwards. Needs nothing
beyond the standard library.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
DRAIN_S = 60.0
"""Seconds after the last arrival; what is not finished then is cut off and counted as failed."""


@dataclass(frozen=True, slots=True)
class Order:
    """One request before it is sent.

    Attributes:
        due_s: Seconds since the start.
        prompt: Token ids.
        outputs: Tokens to generate; EOS is ignored.
    """

    due_s: float
    prompt: tuple[int, ...]
    outputs: int

    def body(self) -> bytes:
        """Return it as JSON."""
        fields = {
            "prompt": self.prompt,
            "max_tokens": self.outputs,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(slots=True)
class Answer:
    """What came back.

    Attributes:
        order: For what.
        status: Of HTTP; 0 if none came.
        pieces: Seconds since the start, and the bytes that came then.
    """

    order: Order
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def tokens(self) -> list[tuple[float, int]]:
        """Return how many tokens came when, for the pieces that brought any."""
        found = [(at, sum(map(_tokens_of, piece.split(b"\n\n")))) for at, piece in self.pieces]
        return [(at, count) for at, count in found if count]

    @property
    def is_whole(self) -> bool:
        """Whether every token came."""
        return sum(count for _, count in self.tokens()) == self.order.outputs


def _tokens_of(event: bytes) -> int:
    data = event.removeprefix(b"data: ")
    if not data.startswith(b"{"):
        return 0
    return sum(len(one.get("token_ids", ())) for one in json.loads(data).get("choices", ()))


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the slow end of some times.

    Attributes:
        p50: Median, in ms.
        p99: 99th percentile, in ms.
    """

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Take percentiles; of one value, it is both."""
        if len(seconds) == 1:
            return cls(seconds[0] * 1e3, seconds[0] * 1e3)
        cuts = statistics.quantiles(seconds, n=100, method="inclusive")
        return cls(cuts[49] * 1e3, cuts[98] * 1e3)


@dataclass(frozen=True, slots=True)
class Point:
    """What clients saw at one rate.

    Attributes:
        rate: Requests a second that were offered.
        requests: How many in all.
        failed: Refused, cut off, or without all their tokens.
        ttft: From when a request was due to its first token.
        itl: Between pieces that bring tokens; a step of the engine brings one.
        out_tok_s: Tokens a second from the first arrival to the last token.
    """

    rate: float
    requests: int
    failed: int
    ttft: Spread
    itl: Spread
    out_tok_s: float

    @classmethod
    def of(cls, rate: float, answers: Sequence[Answer]) -> Point:
        """Summarise; answers that are not whole count as failed and for nothing else.

        Raises:
            ValueError: None is whole.
        """
        whole = [one for one in answers if one.is_whole]
        if not whole:
            raise ValueError(f"no request of {len(answers)} got its tokens at {rate:g} a second")
        times = [one.tokens() for one in whole]
        gaps = [
            later - earlier for one in times for (earlier, _), (later, _) in itertools.pairwise(one)
        ]
        first = min(one.order.due_s for one in whole)
        last = max(one[-1][0] for one in times)
        return cls(
            rate=rate,
            requests=len(answers),
            failed=len(answers) - len(whole),
            ttft=Spread.of(
                [one[0][0] - answer.order.due_s for answer, one in zip(whole, times, strict=True)]
            ),
            itl=Spread.of(gaps or [0.0]),
            out_tok_s=sum(count for one in times for _, count in one) / (last - first),
        )


def poisson(
    rate: float, count: int, prompt: int, outputs: int, vocab: int, seed: int
) -> list[Order]:
    """Draw requests.

    Args:
        rate: Mean arrivals a second.
        count: How many.
        prompt: Mean tokens of a prompt; a quarter more or less at most.
        outputs: Mean tokens of an answer, in the same way.
        vocab: Token ids are below it.
        seed: Of everything.
    """
    chance, due, orders = random.Random(f"{seed}:{rate}"), 0.0, []
    for _ in range(count):
        length = chance.randint(prompt * 3 // 4, prompt * 5 // 4)
        ids = tuple(chance.randrange(min(10, vocab - 1), vocab) for _ in range(length))
        orders.append(Order(due, ids, chance.randint(outputs * 3 // 4, outputs * 5 // 4)))
        due += chance.expovariate(rate)
    return orders


async def drive(port: int, orders: Sequence[Order]) -> list[Answer]:
    """Send every request when it is due and gather the answers.

    Args:
        port: Of the server on this machine.
        orders: By time.
    """
    bodies = [one.body() for one in orders]  # before the clock runs
    answers = [Answer(one) for one in orders]
    start = time.perf_counter()
    tasks = [
        asyncio.create_task(_ask(port, body, answer, start))
        for body, answer in zip(bodies, answers, strict=True)
    ]
    _, late = await asyncio.wait(tasks, timeout=orders[-1].due_s + DRAIN_S)
    for one in late:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answers


async def _ask(port: int, body: bytes, answer: Answer, start: float) -> None:
    await asyncio.sleep(max(0.0, start + answer.order.due_s - time.perf_counter()))
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        answer.status = int(status.split(None, 2)[1])
        if answer.status != 200:
            return
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size + 2)
            answer.pieces.append((time.perf_counter() - start, piece[:-2]))
    finally:
        writer.close()
