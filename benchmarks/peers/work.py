"""What every engine is asked on a CPU, and the figure that its answers make."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from camshaft.plugins.lab.workloads import jobs

from .protocol import Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .protocol import Answer

START = "cpu-start"
"""The workload of processes that are started for it; the others run in those that are there."""

METRICS = {
    "cpu-single": "out_tok_s",
    "cpu-batch8": "out_tok_s",
    "cpu-batch32": "out_tok_s",
    "cpu-prompt512": "ttft_ms",
    "cpu-prompt1500": "ttft_ms",
}
"""Of workloads in processes that are there."""

UNITS = {"out_tok_s": "tok/s", "ttft_ms": "ms", "start_s": "s", "pss_mb": "MB", "rss_mb": "MB"}
PROMPTS_A_SAMPLE = 3
"""Of the workloads of one prompt; their median counts, and counters of 10 ms have time to count."""


def questions(workload: str, number: int, vocab: int) -> list[Question]:
    """Return what is asked for one sample; no two numbers have a prompt in common.

    Args:
        workload: Of `METRICS`.
        number: Of the sample.
        vocab: Token ids are below it.
    """
    count = PROMPTS_A_SAMPLE if METRICS[workload] == "ttft_ms" else 1
    found = []
    for seed in range(number * count, (number + 1) * count):
        work = jobs(workload, vocab, seed)
        found.append(Question([list(job.prompt) for job in work], work[0].outputs))
    return found


def figure(workload: str, answers: Sequence[Answer]) -> float:
    """Return a sample's figure.

    One stream counts the tokens after the first and the time that they took, several streams all
    tokens from the submission on, prompts the milliseconds to their first token.
    """
    if METRICS[workload] == "ttft_ms":
        return statistics.median(one.first_s for one in answers) * 1e3
    (one,) = answers
    tokens = sum(map(len, one.ids))
    if len(one.ids) == 1:
        return (tokens - 1) / (one.whole_s - one.first_s)
    return tokens / one.whole_s


def is_better(metric: str, one: float, other: float) -> bool:
    """Return whether a figure beats another one: rates are high, everything else is low."""
    return one > other if metric == "out_tok_s" else one < other


def leading(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many first tokens two answers have in common."""
    for at, (one, other) in enumerate(zip(ids, others, strict=True)):
        if one != other:
            return at
    return len(ids)
