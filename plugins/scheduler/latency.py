"""The most prompt tokens that keep a step within a time.

Source: Agrawal et al., "Sarathi-Serve", OSDI 2024 (arXiv 2403.02310), section 4.3: the token budget
follows from the latency that decodes may have. Departure: it is found anew for each step, from the
predicted time of that step's decodes and their context, not once by profiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.scheduler import RequestView, View

FEWEST = 16
"""Prompt tokens that a step may always hold: decodes that take all the time would stop prompts."""


def tokens_within(
    view: View, decodes: Sequence[RequestView], start: int, most: int, seconds: float
) -> int:
    """Return how many tokens of prompts may join decodes.

    Args:
        view: Predicts.
        decodes: One token of each is in the step.
        start: Context before the prompts' tokens, tokens.
        most: To return.
        seconds: That the step may take.

    Returns:
        The most that keep it within that, `FEWEST` at least, `most` at most; to one part in 16.
    """
    base = view.shape(decodes)

    def fits(tokens: int) -> bool:
        shape = base._replace(
            requests=base.requests + 1,
            tokens=base.tokens + tokens,
            context=base.context + start + tokens,
        )
        return view.predict(shape) <= seconds

    low, high = min(FEWEST, most), most
    if low == high or fits(high):
        return high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
