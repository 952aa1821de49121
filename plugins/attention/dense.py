"""How a step is cut for a dense kernel that plans anew for each shape: plain arithmetic.

Shapes must be few, so rows come in whole blocks. One request with context and new tokens:

    keys   [0 ............. whole) [whole ..... context) [context ................ context + new)
                gathered, in pieces      `front` rows           new rows, rounded to blocks
                of powers of two         that pad the first block

    rows   of a causal call: from `whole` on. The rows of `front` are computed and thrown away, and
           so are those behind the last token if rounding went up; what rounding down left over is
           for another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

MOST_BATCH = 4
MOST_PIECE = 16  # blocks of a piece of context: bounds what is gathered at a time
MOST_WASTE = 1.5  # rows for each row that is wanted; beyond it a kernel of half the speed wins


@dataclass(frozen=True, slots=True)
class DenseCall:
    """Causal attention of neighbouring requests of one size, and what it does not see.

    Attributes:
        request: The first of them in the step.
        first: Place of its first token in the step.
        batch: How many requests. Several only if nothing of them is padded, cached or left over.
        tokens: New tokens of each that get their result here, from its first on.
        rows: Of each in the call, a multiple of the block.
        front: Rows before the first token.
        context: Tokens before these rows, a multiple of the block.
        stored: Tokens of each request when the step is done.
    """

    request: int
    first: int
    batch: int
    tokens: int
    rows: int
    front: int
    context: int
    stored: int

    @property
    def padded(self) -> bool:
        """Whether rows are more than tokens."""
        return self.rows != self.tokens

    @property
    def fresh(self) -> bool:
        """Whether the rows' own keys are all that they see."""
        return not self.padded and not self.context

    @property
    def whole(self) -> bool:
        """Whether rows, tokens and stored keys are the same."""
        return self.rows == self.tokens == self.stored


def dense_calls(
    starts: NDArray[np.int32], context: NDArray[np.int32], least: int, block: int
) -> list[DenseCall]:
    """Choose the requests that run dense.

    Args:
        starts: [B + 1] places of the requests' tokens in the step.
        context: [B] tokens before them, exact.
        least: Fewest new tokens of a request that is chosen.
        block: Rows are multiples of it.
    """
    counts = np.diff(starts)
    chosen = (
        _call(int(index), int(starts[index]), int(counts[index]), int(context[index]), block)
        for index in np.flatnonzero(counts >= max(least, block))
    )
    return list(_joined(one for one in chosen if one.rows <= MOST_WASTE * one.tokens))


def _call(request: int, first: int, count: int, context: int, block: int) -> DenseCall:
    front = context % block
    rows = (front + count + block // 2) // block * block
    return DenseCall(
        request=request,
        first=first,
        batch=1,
        tokens=min(count, rows - front),
        rows=rows,
        front=front,
        context=context - front,
        stored=context + count,
    )


def _joined(calls: Iterable[DenseCall]) -> Iterator[DenseCall]:
    """Put equal neighbours side by side, in batches of powers of two: each is a shape."""
    run: list[DenseCall] = []
    for call in calls:
        last = run[-1] if run else None
        if last is not None and not (
            last.whole and call.whole and call.rows == last.rows and call.request == _next(last)
        ):
            yield from _batches(run)
            run = []
        run.append(call)
    yield from _batches(run)


def _next(call: DenseCall) -> int:
    return call.request + call.batch


def _batches(run: list[DenseCall]) -> Iterator[DenseCall]:
    at = 0
    while at < len(run):
        batch = min(MOST_BATCH, 1 << (len(run) - at).bit_length() - 1)
        yield replace(run[at], batch=batch)
        at += batch


def pieces(context: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a context into pieces of powers of two blocks, largest first.

    Yields:
        (first token, tokens) of each.
    """
    at = 0
    while at < context:
        blocks = (context - at) // block
        tokens = block * min(MOST_PIECE, 1 << blocks.bit_length() - 1)
        yield at, tokens
        at += tokens


def covered_tokens(calls: Iterable[DenseCall], requests: int) -> NDArray[np.int32]:
    """Return how many leading new tokens of each request are in a call, [requests]."""
    covered = np.zeros(requests, dtype=np.int32)
    for call in calls:
        covered[call.request : call.request + call.batch] = call.tokens
    return covered
