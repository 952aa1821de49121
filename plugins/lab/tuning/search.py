"""The search for the best split of a step, and from how many tokens on it pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .costs import Mix
from .splits import Split, candidates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .costs import Costs

LEAST_GAIN = 0.02
"""Share of a step's time that a split must save; less may be noise of the measured times."""
AS_GOOD = 1.01
"""Of splits that take up to so many times the fastest, one with the fewest parts is taken."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A step in one batch, and split.

    Attributes:
        mix: What it holds.
        tokens: Of it.
        whole_s: Predicted seconds in one batch.
        split_s: And in parts; as in one batch where it cannot be cut.
    """

    mix: Mix
    tokens: int
    whole_s: float
    split_s: float

    @property
    def gain(self) -> float:
        """Share of the time that is saved."""
        return 1 - self.split_s / self.whole_s


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found.

    Attributes:
        best: The split for the largest step.
        tried: Every split with the predicted seconds of that step, fastest first.
        steps: The best split at each size of step, the smallest first.
        minimum_tokens: Steps with as many tokens gain from it; None if not even the largest does.
    """

    best: Split
    tried: Sequence[tuple[Split, float]]
    steps: Sequence[Compared]
    minimum_tokens: int | None


def search(costs: Costs, mix: Mix) -> Tuned:
    """Find the best split.

    Args:
        costs: Of all operations.
        mix: The largest step, of two requests at least.
    """
    tried = []
    for split in candidates():
        parts = split.cut(mix, costs.length)
        if len(parts) > 1:
            tried.append((split, costs.seconds(parts)))
    tried.sort(key=lambda one: one[1])
    near = [one for one, seconds in tried if seconds <= AS_GOOD * tried[0][1]]
    best = min(near, key=lambda one: one.parts)
    steps = [_compared(costs, best, one) for one in sizes(mix)]
    # where all runs in order a difference is noise
    return Tuned(best, tried, steps, minimum_tokens(steps) if costs.overlaps else None)


def sizes(mix: Mix) -> list[Mix]:
    """Return steps up to the largest: first more and more that decode, then prompts beside them."""
    decodes = sorted({-(-mix.decodes * part // 4) for part in range(1, 5)} - {0})
    prompts = sorted({-(-mix.prompts * part // 8) for part in range(1, 9)} - {0})
    return [*(Mix(one, 0) for one in decodes), *(Mix(mix.decodes, one) for one in prompts)]


def minimum_tokens(steps: Iterable[Compared]) -> int | None:
    """Return the tokens of the smallest step from which on all gain; `steps` ascend."""
    found = None
    for one in steps:
        if one.gain < LEAST_GAIN:
            found = None
        elif found is None:
            found = one.tokens
    return found


def _compared(costs: Costs, split: Split, mix: Mix) -> Compared:
    whole = costs.seconds([mix])
    parts = split.cut(mix, costs.length)
    # a step that is not cut has one part, and runs as ever
    halves = costs.seconds(parts) if len(parts) > 1 else whole
    return Compared(mix, mix.tokens(costs.length), whole, halves)
