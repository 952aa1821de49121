"""Running jobs through an engine's own loop, with the times of every token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import CamshaftError
from camshaft.request import Request, SamplingParams, TokenSpan

from .cache_use import CacheUse, CacheWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.loop.engine import Engine
    from camshaft.request import RequestOutput

    from .workloads import Job


@dataclass(slots=True)
class Answer:
    """What one request got.

    Attributes:
        ids: Token ids.
        times: Of each token, in seconds since the start of the run.
    """

    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a workload.

    Attributes:
        seconds: From the first submission to the last token.
        requests: How many.
        n_in: Prompt tokens.
        n_out: Generated tokens.
        ttft_ms: Of each request.
        tpot_ms: Mean time per later token, of each request with more than one.
        answers: Token ids of each request.
        cache: What the cache did.
    """

    seconds: float
    requests: int
    n_in: int
    n_out: int
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    answers: tuple[tuple[int, ...], ...] = ()
    cache: CacheUse = field(default_factory=CacheUse)

    def summary(self) -> dict[str, object]:
        """Return the figures that `engine bench --json` prints."""
        return {
            "seconds": round(self.seconds, 4),
            "requests": self.requests,
            "n_in": self.n_in,
            "n_out": self.n_out,
            "out_tok_s": round(self.n_out / self.seconds, 2),
            "in_tok_s": round(self.n_in / self.seconds, 2),
            "ttft_ms": _percentiles(self.ttft_ms),
            "tpot_ms": _percentiles(self.tpot_ms),
        }


def measure(engine: Engine, jobs: Sequence[Job]) -> Measurement:
    """Submit all jobs at once and step until the last has ended. The cache starts cold: tiers, too.

    Outputs are kept as they come and read when the clock has stopped.

    Raises:
        CamshaftError: A request did not get its tokens.
    """
    engine.reset_cache()
    watch = CacheWatch(engine)
    turns: list[tuple[float, list[RequestOutput]]] = []
    start = time.perf_counter()
    submit(engine, jobs)
    while engine.has_work:
        outputs = engine.step()
        turns.append((time.perf_counter() - start, outputs))
        watch.turn()
        if engine.wake_at is not None:
            engine.clock.rest(engine.wake_at)
    seconds = time.perf_counter() - start
    return replace(_measurement(jobs, _answers(turns, len(jobs)), seconds), cache=watch.use())


def submit(engine: Engine, jobs: Sequence[Job]) -> None:
    """Submit all jobs, greedy and with EOS ignored; job N is called `jobN`."""
    for number, job in enumerate(jobs):
        params = SamplingParams(max_tokens=job.outputs, temperature=0.0, ignore_eos=True)
        spans = (TokenSpan(list(job.prompt)),)
        engine.submit(Request(id=f"job{number}", spans=spans, params=params))


def _answers(turns: Sequence[tuple[float, list[RequestOutput]]], count: int) -> list[Answer]:
    answers = {f"job{number}": Answer() for number in range(count)}
    for at, outputs in turns:
        for one in outputs:
            if one.finish not in {None, "length"}:
                raise CamshaftError(f"{one.id} ended with '{one.finish}': {one.message}")
            answers[one.id].ids.extend(one.token_ids)
            answers[one.id].times.extend([at] * len(one.token_ids))
    return list(answers.values())


def _measurement(jobs: Sequence[Job], answers: Sequence[Answer], seconds: float) -> Measurement:
    for job, one in zip(jobs, answers, strict=True):
        if len(one.ids) != job.outputs:
            raise CamshaftError(
                f"a request got {len(one.ids)} of {job.outputs} tokens; the workload does not "
                "fit model.max_context or cache.memory"
            )
    return Measurement(
        seconds=seconds,
        requests=len(jobs),
        n_in=sum(len(job.prompt) for job in jobs),
        n_out=sum(job.outputs for job in jobs),
        ttft_ms=tuple(one.times[0] * 1e3 for one in answers),
        tpot_ms=tuple(
            (one.times[-1] - one.times[0]) / (len(one.times) - 1) * 1e3
            for one in answers
            if len(one.times) > 1
        ),
        answers=tuple(tuple(one.ids) for one in answers),
    )


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "p50": round(float(np.percentile(values, 50)), 3),
        "p99": round(float(np.percentile(values, 99)), 3),
    }
