"""Requests of a chat service: how long they are, and how they come.

Lengths and gaps follow the conversation trace of AzureLLMInferenceTrace 2023 (Azure Public Dataset,
CC-BY-4.0; Patel et al., "Splitwise", ISCA 2024): 19,366 requests of an hour, described here by
their quantiles. In the trace prompts and answers are hardly correlated (rank correlation 0.07), so
both are drawn alone.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PER_CENT = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100)
PROMPT = (2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 6179, 14050)
ANSWER = (7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000)
GAP = (0, 0.003, 0.035, 0.089, 0.202, 0.336, 0.483, 0.655, 0.878, 1.181, 1.597, 2.326, 3.126, 4.92)
"""Tokens, tokens, and seconds between arrivals of which one comes a second; `TAIL` goes on."""

TAIL = (7.804, 23.86)
BURSTINESS = 4.0
"""Variance of gamma gaps over their squared mean; 1 would be Poisson."""

HIGH_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Order:
    """A request before it comes.

    Attributes:
        due_s: Seconds since the start.
        prompt: Tokens.
        answer: Tokens.
        is_high: Whether it is urgent.
    """

    due_s: float
    prompt: int
    answer: int
    is_high: bool


def quantile(table: Sequence[float], share: float) -> float:
    """Return the value below which so much of a distribution lies, linear between its quantiles."""
    at = min(bisect_right(PER_CENT, share * 100), len(PER_CENT) - 1)
    low, high = PER_CENT[at - 1], PER_CENT[at]
    return table[at - 1] + (table[at] - table[at - 1]) * (share * 100 - low) / (high - low)


def _poisson(chance: random.Random) -> float:
    return chance.expovariate(1.0)


def _bursty(chance: random.Random) -> float:
    return chance.gammavariate(1 / BURSTINESS, BURSTINESS)


def _trace(chance: random.Random) -> float:
    return quantile((*GAP, *TAIL), chance.random())


ARRIVALS: dict[str, Callable[[random.Random], float]] = {
    "poisson": _poisson,
    "bursty": _bursty,
    "trace": _trace,
}
"""Draw a gap, with a mean of one second."""


def draw(kind: str, rate: float, count: int, scale: tuple[float, float], seed: int) -> list[Order]:
    """Draw requests. Lengths do not depend on kind and rate, so that these can be compared.

    Args:
        kind: Of `ARRIVALS`.
        rate: Mean requests a second.
        count: How many.
        scale: Divides the trace's lengths, those of prompts and of answers.
        seed: Of everything.
    """
    lengths, gaps = random.Random(f"lengths {seed}"), random.Random(f"gaps {seed}")
    due, orders = 0.0, []
    for _ in range(count):
        due += ARRIVALS[kind](gaps) / rate
        prompt, answer = (
            max(2, round(quantile(table, lengths.random()) / divisor))
            for table, divisor in zip((PROMPT, ANSWER), scale, strict=True)
        )
        orders.append(Order(due, prompt, answer, lengths.random() < HIGH_SHARE))
    return orders
