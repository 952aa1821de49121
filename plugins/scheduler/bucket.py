"""Length buckets: prompts that start in one step are of similar length.

Source: Zheng et al., "BucketServe" (arXiv 2507.17120): requests are grouped by length, so that
short ones are not held up behind long ones in a batch. Departure: the request that comes first
chooses the bucket of a step, so nobody waits for a bucket to fill.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def bucket(tokens: int, bounds: Sequence[int]) -> int:
    """Return the bucket of a length: 0 up to the first bound, 1 up to the second, and so on.

    Args:
        tokens: The length.
        bounds: Ascending, each the longest of its bucket.
    """
    return bisect_left(bounds, tokens)
