"""Running jobs through an engine's own loop, with the times of every token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import CamshaftError
from camshaft.request import Request, SamplingParams, TokenSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.loop.engine import Engine

    from .workloads import Job


@dataclass(slots=True)
class Times:
    """Of one request, in seconds since the start of the run."""

    tokens: list[float] = field(default_factory=list)


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
    """

    seconds: float
    requests: int
    n_in: int
    n_out: int
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]

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
    """Submit all jobs at once and step until the last has ended. The cache starts cold.

    Raises:
        CamshaftError: A request did not get its tokens.
    """
    engine.reset_cache()
    start = time.perf_counter()
    times: dict[str, Times] = {}
    for number, job in enumerate(jobs):
        name = f"job{number}"
        params = SamplingParams(max_tokens=job.outputs, temperature=0.0, ignore_eos=True)
        engine.submit(Request(id=name, spans=(TokenSpan(list(job.prompt)),), params=params))
        times[name] = Times()
    while engine.has_work:
        outputs = engine.step()
        now = time.perf_counter() - start
        for one in outputs:
            times[one.id].tokens.extend([now] * len(one.token_ids))
            if one.finish not in {None, "length"}:
                raise CamshaftError(f"{one.id} ended with '{one.finish}': {one.message}")
    seconds = time.perf_counter() - start
    return _measurement(jobs, [times[f"job{number}"] for number in range(len(jobs))], seconds)


def _measurement(jobs: Sequence[Job], times: Sequence[Times], seconds: float) -> Measurement:
    for job, one in zip(jobs, times, strict=True):
        if len(one.tokens) != job.outputs:
            raise CamshaftError(
                f"a request got {len(one.tokens)} of {job.outputs} tokens; the workload does not "
                "fit model.max_context or cache.memory"
            )
    return Measurement(
        seconds=seconds,
        requests=len(jobs),
        n_in=sum(len(job.prompt) for job in jobs),
        n_out=sum(job.outputs for job in jobs),
        ttft_ms=tuple(one.tokens[0] * 1e3 for one in times),
        tpot_ms=tuple(
            (one.tokens[-1] - one.tokens[0]) / (len(one.tokens) - 1) * 1e3
            for one in times
            if len(one.tokens) > 1
        ),
    )


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "p50": round(float(np.percentile(values, 50)), 3),
        "p99": round(float(np.percentile(values, 99)), 3),
    }
