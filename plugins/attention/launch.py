"""Block sizes and split counts of the `triton` kernels: plain arithmetic, without triton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESIDENT = 3  # decode programs that one multiprocessor holds at a time, by its registers
MOST_SPLITS = 128  # what the merge kernel takes in one load,
MOST_PIECES = 64  # and of these from a shared prefix


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a kernel is cut.

    Attributes:
        rows: Query tokens times query heads of one program, a power of two.
        keys: Of one pass of its loop, a power of two.
        warps: Of a program.
        stages: Of the software pipeline.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def prefill_blocks(itemsize: int, head_dim: int, group: int) -> Blocks:
    """Return blocks whose tiles fit registers and shared memory.

    Args:
        itemsize: Bytes of an element.
        head_dim: D.
        group: Query heads of a kv head.
    """
    least = power_of_two(group)
    if itemsize == 4:  # no matrix unit computes exact float32: small tiles, or registers spill
        if head_dim > 128:
            return Blocks(max(16, least), 16, 8, 2)
        return Blocks(max(32, least), 32, 8 if head_dim > 64 else 4, 2)
    if head_dim > 128:
        return Blocks(max(128, least), 64, 8, 2)
    return Blocks(max(128, least), 64, 8, 3)


def decode_blocks(itemsize: int, head_dim: int, rows: int) -> Blocks:
    """Return blocks that keep enough bytes in flight.

    Args:
        itemsize: Bytes of an element.
        head_dim: D.
        rows: Query tokens times query heads of a kv head.
    """
    # three stages: page numbers, then keys and values of the next tile, then the tile at work
    keys = 64
    if itemsize * head_dim > 256:
        keys = 16 if itemsize == 4 else 32
    return Blocks(max(16, power_of_two(rows)), keys, 4, 3)


def cascade_blocks(itemsize: int, head_dim: int, group: int) -> Blocks:
    """Return blocks of the cascade kernel: many queries, as in a prefill, but no mask.

    Args:
        itemsize: Bytes of an element.
        head_dim: D.
        group: Query heads of a kv head.
    """
    return prefill_blocks(itemsize, head_dim, group)


def cascade_programs(kv_heads: int, processors: int) -> int:
    """Return how many programs share the prefixes of one kv head: one a multiprocessor in all."""
    return max(1, min(MOST_PIECES, processors // kv_heads))


def split_count(pairs: int, tiles: int, processors: int, most: int) -> int:
    """Return into how many pieces each request's keys are cut.

    The fewest that leave nearly no multiprocessor idle in the last wave: each piece costs a merge.

    Args:
        pairs: Requests times kv heads.
        tiles: Of keys in the longest request, an upper bound.
        processors: Multiprocessors of the device.
        most: From the settings.
    """
    slots = RESIDENT * processors
    limit = max(1, min(most, MOST_SPLITS, tiles, most_programs(processors) // pairs))
    filled = []
    for splits in range(1, limit + 1):
        waves = -(-pairs * splits // slots)
        filled.append(pairs * splits / (waves * slots))
    enough = 0.95 * max(filled)
    return next(number for number, share in enumerate(filled, 1) if share >= enough)


def most_programs(processors: int) -> int:
    """Return how many programs a launch with several splits has at most; sizes its scratch."""
    return 4 * RESIDENT * processors


def query_tiles(
    counts: NDArray[np.int32], context: NDArray[np.int32], tokens: int
) -> NDArray[np.int32]:
    """List the tiles of a prefill, those with the most keys first.

    Programs start in this order, and a long tile that starts last would run alone.

    Args:
        counts: [B] query tokens of each request.
        context: [B] tokens before them.
        tokens: Query tokens of a tile.

    Returns:
        [n, 2]: request, and the first of its query tokens.
    """
    each = -(-counts // tokens)
    request = np.repeat(np.arange(len(counts), dtype=np.int32), each)
    before = np.concatenate([[0], np.cumsum(each)[:-1]])
    first = (np.arange(len(request)) - before[request]) * tokens
    order = np.argsort(-(context[request] + first), kind="stable")
    return np.stack([request, first], axis=1)[order].astype(np.int32)
