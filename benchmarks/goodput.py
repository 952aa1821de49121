"""What became of requests: who was served in time, and how much was done.

A request is served in time if its first token came within `TTFT_S` of when it was due, and the mean
time between its later ones is at most `TPOT_S`. One that was refused was not.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from camshaft.loop.clock import VirtualClock
from camshaft.testing.engines import make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.loop.engine import Engine
    from camshaft.request import Request, RequestOutput

    from .arrivals import Order

TTFT_S, TPOT_S = 2.0, 0.1


@dataclass(slots=True)
class Served:
    """What a client got.

    Attributes:
        order: For what.
        stamps: Seconds since the start, at which a token came.
        finish: How it ended.
    """

    order: Order
    stamps: list[float] = field(default_factory=list)
    finish: str | None = None

    @property
    def in_time(self) -> bool:
        """Whether all of it came as soon as it should."""
        if self.finish != "length" or self.stamps[0] - self.order.due_s > TTFT_S:
            return False
        later = len(self.stamps) - 1
        return (self.stamps[-1] - self.stamps[0]) <= TPOT_S * later


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures.

    Attributes:
        in_time: Share of all requests.
        high_in_time: Share of the urgent ones.
        out_tok_s: Tokens of finished requests a second, from the first arrival to the last token.
        itl_p99_s: 99th percentile of the time between two tokens of a request.
        refused: Share of all requests.
    """

    in_time: float
    high_in_time: float
    out_tok_s: float
    itl_p99_s: float
    refused: float

    @classmethod
    def of(cls, served: Sequence[Served]) -> Summary:
        """Summarise a run."""
        high = [one.in_time for one in served if one.order.is_high]
        whole = [one for one in served if one.finish == "length"]
        gaps = [np.diff(one.stamps) for one in served if len(one.stamps) > 1]
        last = max(one.stamps[-1] for one in whole)
        return cls(
            in_time=sum(one.in_time for one in served) / len(served),
            high_in_time=sum(high) / max(len(high), 1),
            out_tok_s=sum(len(one.stamps) for one in whole) / (last - served[0].order.due_s),
            itl_p99_s=float(np.percentile(np.concatenate(gaps), 99)),
            refused=sum(one.finish == "refused" for one in served) / len(served),
        )


class Drive:
    """Sends orders to an engine when they are due, in real or in virtual time."""

    def __init__(self, engine: Engine, vocab: int) -> None:
        """Prepare.

        Args:
            engine: Idle.
            vocab: Ids of prompts are below it.
        """
        self._engine = engine
        self._vocab = vocab
        self._runs = 0
        self._begin = 0.0

    def run(self, orders: Sequence[Order]) -> list[Served]:
        """Serve all orders; return what became of each."""
        engine, self._runs = self._engine, self._runs + 1
        self._begin = engine.clock.now()
        served = {f"{self._runs}-{number}": Served(one) for number, one in enumerate(orders)}
        waiting = list(reversed(served.items()))
        while waiting or engine.has_work:
            while waiting and self._begin + waiting[-1][1].order.due_s <= engine.clock.now():
                name, one = waiting.pop()
                engine.submit(self._request(name, one.order))
            if engine.has_work:
                self._note(engine.step(), served)
            next_due = waiting[-1][1].order.due_s if waiting else None
            if not engine.has_work or engine.wake_at is not None:
                self._idle(next_due)
        engine.reset_cache()
        return list(served.values())

    def _now(self) -> float:
        return self._engine.clock.now() - self._begin

    def _request(self, name: str, order: Order) -> Request:
        chance = random.Random(name)  # no two begin alike
        ids = [chance.randrange(100, self._vocab) for _ in range(order.prompt)]
        return make_request(
            name,
            ids,
            order.answer,
            ignore_eos=True,
            priority=0 if order.is_high else 1,
            tenant="high" if order.is_high else "low",
            ttft_slo_s=TTFT_S,
            tpot_slo_s=TPOT_S,
        )

    def _note(self, outputs: list[RequestOutput], served: dict[str, Served]) -> None:
        now = self._now()
        for one in outputs:
            served[one.id].stamps += [now] * len(one.token_ids)
            served[one.id].finish = one.finish

    def _idle(self, next_due: float | None) -> None:
        """Let time pass until something is to be done."""
        clock = self._engine.clock
        due = [] if next_due is None else [self._begin + next_due]
        if self._engine.wake_at is not None:
            due.append(self._engine.wake_at)
        if not due:
            return
        wait = max(0.0, min(due) - clock.now())
        if isinstance(clock, VirtualClock):
            clock.advance_to(clock.now() + wait)
        else:
            time.sleep(wait)
