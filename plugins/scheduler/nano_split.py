"""Where a step is cut into nano-batches: between its requests, never inside one.

Source: Zhu et al., "NanoFlow", arXiv 2408.12757, section 4. There parts are a share of the step's
tokens each. To keep decodes and prompts apart is another cut, for devices on which a smaller
product costs as much as a large one: no weight is then read for few prompts again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Sizes = tuple[int, ...]


def by_phase(decodes: int, prompts: int) -> Sizes:
    """Return the items of the decodes' part and of the prompts', nothing where one is empty."""
    return (decodes, prompts) if decodes and prompts else ()


def by_tokens(decodes: int, prompts: Sequence[int], shares: Sequence[float]) -> Sizes:
    """Return the items of each part, the cuts as near to the shares as requests allow.

    Args:
        decodes: Requests with one token, which come first.
        prompts: Tokens of each item behind them.
        shares: Of the tokens, relative to their sum.

    Returns:
        Fewer parts than shares where two cuts are the same; nothing for less than two items.
    """
    ends = [*range(1, decodes + 1), *accumulate(prompts, initial=decodes)]
    del ends[decodes]  # where prompts begin
    if len(ends) < 2:
        return ()
    last, scale = ends.pop(), 1 / sum(shares)
    cuts = {_nearest(ends, share * scale * last) for share in accumulate(shares[:-1])}
    bounds = [0, *sorted(cuts), len(ends) + 1]
    return tuple(end - start for start, end in pairwise(bounds))


def _nearest(ends: list[int], wanted: float) -> int:
    """Return the number of items whose end is nearest, the smaller of two."""
    place = bisect_left(ends, wanted)
    if place and (place == len(ends) or wanted - ends[place - 1] <= ends[place] - wanted):
        return place
    return place + 1
