"""Replaying a trace through an engine's own loop, in real time or in virtual time.

In virtual time a step takes what `STEP_S` and `TOKEN_S` say, so that the order of things, and with
it every hit and every eviction, depends on the trace alone and not on the machine.
"""

from __future__ import annotations

import heapq
import statistics
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import CamshaftError
from camshaft.loop.clock import VirtualClock
from camshaft.request import Request, SamplingParams, TokenSpan

from .traces import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.loop.engine import Engine
    from camshaft.request import RequestOutput

    from .traces import Trace, Turn

STEP_S, TOKEN_S = 10e-3, 50e-6
"""Virtual seconds of a step, and of each of its tokens: about an 8B model on one large device."""

LOOK_S = 0.5e-3
"""Of a turn in which nothing can run until a tier has delivered."""

TIER_S = {"memory": 6e-6, "files": 40e-6}
"""And of each token that a tier brings: 128 KiB at 20 and at 3 GB/s, as if nothing overlapped."""


@dataclass(slots=True)
class Served:
    """One request and what it got.

    Attributes:
        prompt: Token ids.
        due_s: When it was due, on the engine's clock.
        answer: Token ids.
        cached: Prompt tokens that the cache served.
        first_s: When its first token came.
    """

    prompt: list[int]
    due_s: float
    answer: list[int] = field(default_factory=list)
    cached: int = 0
    first_s: float = 0.0


@dataclass
class Replayed:
    """A trace that was replayed.

    Attributes:
        served: Requests in the order of their submission.
        plain_us: Microseconds that each turn of the loop that admitted nobody had a core of the
            host for: its own time, whatever else the machine does.
        admitting_us: Of each other turn, and how many it admitted.
        held: Pages in tables and requests that run, after each turn in which any do.
        evicted_pages: In all.
        preemptions: In all.
        counters: Of the cache, at the end.
    """

    served: list[Served] = field(default_factory=list)
    plain_us: list[float] = field(default_factory=list)
    admitting_us: list[tuple[float, int]] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    evicted_pages: int = 0
    preemptions: int = 0
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the cache served."""
        return sum(one.cached for one in self.served) / self._prompt_tokens

    @cached_property
    def ideal_hit_rate(self) -> float:
        """What a cache would serve that keeps every token, each sequence being added as it begins.

        A request computes its last prompt token in any case, and the last token of an answer is
        never computed.
        """
        tokens, known = Tokens(), 0
        for one in self.served:
            known += tokens.known(one.prompt[:-1])
            tokens.add(one.prompt + one.answer[:-1])
        return known / self._prompt_tokens

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(one.prompt) for one in self.served)

    @property
    def pages_per_request(self) -> float:
        """Pages in tables per running request, on average over turns; shared ones count once."""
        return statistics.fmean(pages / running for pages, running in self.held)

    @property
    def step_us(self) -> float:
        """Median host microseconds of a turn that admits nobody."""
        return statistics.median(self.plain_us)

    @property
    def admission_us(self) -> float:
        """Median of what an admission adds to a turn."""
        usual = self.step_us
        return statistics.median((us - usual) / count for us, count in self.admitting_us)

    def ttft_ms(self, percentile: float) -> float:
        """Return a percentile of the time from when a request was due to its first token."""
        seconds = [one.first_s - one.due_s for one in self.served]
        return float(np.percentile(seconds, percentile)) * 1e3


class Replay:
    """One trace on one engine. Use it once."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        """Prepare.

        Args:
            engine: With nothing cached. Real time passes as it does; virtual time is moved on.
            trace: What to ask.
        """
        self._engine = engine
        self._clock = engine.clock
        self._turns = [list(one) for one in trace.conversations]
        self._said: list[list[int]] = [[] for _ in self._turns]
        self._open: dict[str, tuple[int, Served]] = {}
        self._result = Replayed()
        self._brought_s = 0.0
        start = self._clock.now()
        self._due = [(start + turns[0].think_s, number) for number, turns in enumerate(self._turns)]
        heapq.heapify(self._due)

    def run(self) -> Replayed:
        """Replay to the end.

        Raises:
            CamshaftError: A request did not get its tokens.
        """
        while self._due or self._engine.has_work:
            while self._due and self._due[0][0] <= self._clock.now():
                self._submit(*heapq.heappop(self._due))
            if self._engine.has_work:
                self._note(self._timed_step())
                self._rest()
            else:
                self._wait_until(self._due[0][0])
        stats = self._engine.stats
        self._result.evicted_pages = stats.evictions.total()
        self._result.preemptions = stats.preemptions.total()
        self._result.counters = self._engine.parts.cache.counters()
        return self._result

    def _submit(self, due_s: float, number: int) -> None:
        turn: Turn = self._turns[number].pop(0)
        said = self._said[number]
        said += turn.added
        one = Served(list(said), due_s)
        name = f"r{len(self._result.served)}"
        self._result.served.append(one)
        self._open[name] = (number, one)
        params = SamplingParams(max_tokens=turn.outputs, temperature=0.0, ignore_eos=True)
        self._engine.submit(Request(id=name, spans=(TokenSpan(list(said)),), params=params))

    def _timed_step(self) -> list[RequestOutput]:
        engine, stats = self._engine, self._engine.stats
        waiting, tokens, steps = len(engine.view.waiting), stats.step_tokens, stats.steps
        preempted = stats.preemptions.total()
        start = time.thread_time()
        outputs = engine.step()
        us = (time.thread_time() - start) * 1e6
        admitted = waiting - len(engine.view.waiting) + stats.preemptions.total() - preempted
        if admitted:
            self._result.admitting_us.append((us, admitted))
        else:
            self._result.plain_us.append(us)
        if running := len(engine.view.running):
            self._result.held.append((sum(one.in_use for one in engine.usage()), running))
        if isinstance(self._clock, VirtualClock):
            spent = STEP_S + TOKEN_S * (stats.step_tokens - tokens)
            if stats.steps == steps and engine.parts.cache.has_tiers:
                spent = LOOK_S  # it waits for a tier
            spent += self._bringing_s()
            self._clock.advance_to(self._clock.now() + spent)
        return outputs

    def _bringing_s(self) -> float:
        """Return the virtual seconds in which tiers brought what they did since the last call."""
        cache = self._engine.parts.cache
        if not cache.has_tiers:
            return 0.0
        counts, before = cache.counters(), self._brought_s
        self._brought_s = sum(s * counts.get(f"hit_tokens_{one}", 0) for one, s in TIER_S.items())
        return self._brought_s - before

    def _note(self, outputs: Iterable[RequestOutput]) -> None:
        now = self._clock.now()
        for output in outputs:
            number, one = self._open[output.id]
            if output.token_ids and not one.answer:
                one.first_s = now
            one.answer += output.token_ids
            one.cached = output.cached_tokens
            if output.finish is None:
                continue
            if output.finish != "length":
                raise CamshaftError(f"{output.id} ended as '{output.finish}': {output.message}")
            del self._open[output.id]
            self._said[number] += one.answer
            if turns := self._turns[number]:
                heapq.heappush(self._due, (now + turns[0].think_s, number))

    def _rest(self) -> None:
        """Sleep while nothing can run, as a server does: who waits for a tier shall not spin."""
        wake_s = self._engine.wake_at
        if wake_s is not None and not isinstance(self._clock, VirtualClock):
            self._clock.rest(min([wake_s, *(due_s for due_s, _ in self._due[:1])]))

    def _wait_until(self, due_s: float) -> None:
        if isinstance(self._clock, VirtualClock):
            self._clock.advance_to(due_s)
            return
        while self._clock.now() < due_s:
            self._clock.rest(due_s)
            self._clock.run_due()  # what threads of tiers have ended
