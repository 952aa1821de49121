"""The best of several answers, by what the model itself thinks of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .answers import Choice


def best_of(choices: Sequence[Choice], candidates: int, wanted: int) -> list[Choice]:
    """Return the most probable answers to each prompt, the best first, numbered anew.

    Probable is what has the highest mean log-probability a token, so that length decides nothing;
    of equals the earlier one is better.

    Args:
        choices: By index, with the logprobs of their tokens; `candidates` for each prompt.
        candidates: Answers that were made to each prompt.
        wanted: Of these.
    """
    found: list[Choice] = []
    for begin in range(0, len(choices), candidates):
        ranked = sorted(choices[begin : begin + candidates], key=lambda one: -_mean(one))
        found += [replace(one, index=len(found) + at) for at, one in enumerate(ranked[:wanted])]
    return found


def _mean(choice: Choice) -> float:
    total = sum(one.chosen.logprob for one in choice.logprobs)
    return total / max(1, len(choice.logprobs))
