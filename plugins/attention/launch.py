"""Block sizes and split counts of the `triton` kernels: plain arithmetic, without triton."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESIDENT = 3  # decode programs that a multiprocessor holds at least, by its registers
ROOMY = 0.93  # how much of the bandwidth narrow tiles need to win: they have less in flight
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
        fuses: A product and a sum may become one operation, with one rounding.
        resident: Programs of the decode kernel that one multiprocessor holds at a time.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    fuses: bool = True
    resident: int = RESIDENT


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


def decode_blocks(itemsize: int, head_dim: int, rows: int, *, is_busy: bool) -> list[Blocks]:
    """Return blocks that keep enough bytes in flight, the best first if both fill the device.

    Terabytes a second on an H200 with 16 query and 8 kv heads of 128 elements, bfloat16,
    2026-11-30, for 256 and 140 requests of 1,100 tokens and for 16 of 16,500: 4.03, 3.93 and 4.15
    with wide tiles, 4.14, 3.40 and 3.93 with narrow ones.

    Args:
        itemsize: Bytes of an element.
        head_dim: D.
        rows: Query tokens times query heads of a kv head.
        is_busy: There are so many requests that bandwidth counts, not latency, and the device has
            as much shared memory as those from Hopper on.
    """
    # three stages: page numbers, then keys and values of the next tile, then the tile at work
    rows = max(16, power_of_two(rows))
    if itemsize * head_dim > 256:
        return [Blocks(rows, 16 if itemsize == 4 else 32, 4, 3)]
    if is_busy and rows == 16 and itemsize * head_dim == 256:
        return [Blocks(rows, 128, 4, 3), Blocks(rows, 64, 4, 3, resident=4)]
    return [Blocks(rows, 64, 4, 3)]


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


def decode_cut(
    candidates: list[Blocks], pairs: int, longest: int, processors: int, most: int
) -> tuple[Blocks, int]:
    """Choose blocks, and into how many pieces each request's keys are cut.

    Args:
        candidates: One or two, as `decode_blocks` returns them.
        pairs: Requests times kv heads.
        longest: Keys of the longest request, an upper bound.
        processors: Multiprocessors of the device.
        most: Pieces, from the settings.
    """
    most = min(most, MOST_SPLITS, most_programs(processors) // pairs)
    cuts = []
    for blocks in candidates:
        slots = blocks.resident * processors
        splits = split_count(pairs, slots, min(most, -(-longest // blocks.keys)))
        cuts.append((blocks, splits, filled(pairs * splits, slots)))
    best, *others = cuts
    for one in others:
        if ROOMY * one[2] > best[2]:
            best = one
    return best[:2]


def split_count(pairs: int, slots: int, most: int) -> int:
    """Return the fewest pieces that leave nearly no multiprocessor idle in the last wave.

    Each piece costs a merge.

    Args:
        pairs: Requests times kv heads.
        slots: Programs that the device holds at a time.
        most: Pieces of a request.
    """
    shares = [filled(pairs * splits, slots) for splits in range(1, max(1, most) + 1)]
    enough = 0.95 * max(shares)
    return next(number for number, share in enumerate(shares, 1) if share >= enough)


def filled(programs: int, slots: int) -> float:
    """Return the share of slots that have work, over all waves of equal programs."""
    return programs / (-(-programs // slots) * slots)


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
