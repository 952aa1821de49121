"""The steps of a warm-up: every kind once, for requests that nobody made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.contracts.scheduler import Rows
from camshaft.step import FROM_DEVICE, Admissions, Ragged, Step, int32

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

KINDS_OF_SIZE = (1, 2, 16, 17)
"""One number of each kind that a compiler may tell apart, and one more."""

GREEDY: Mapping[str, float] = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
DRAWN = {**GREEDY, "temperature": 0.8}
LIMITED = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "top_k": 40}
"""Ways to choose tokens: each has its own kernels."""

_STEP = -1  # an id that no step of a loop has


def largest_steps(slots: int, step_tokens: int, room: int) -> Iterator[Step]:
    """Yield the steps with prompts that take most memory: long ones, and many.

    Both fill a step as far as they can: pieces are then recorded for one size, not for two.
    """
    yield prompts(_filled(slots, step_tokens, room))
    many = min(slots, step_tokens)
    each, more = divmod(step_tokens, many)
    yield prompts([min(each + (place < more), room - 1) for place in range(many)])


def warm_steps(
    slots: int, step_tokens: int, room: int, decode_sizes: Sequence[int]
) -> Iterator[Step]:
    """Yield steps of every kind, the largest first: memory is then taken in one piece."""
    yield from largest_steps(slots, step_tokens, room)
    for count in KINDS_OF_SIZE:
        if 2 * count < room and count + 1 <= step_tokens:
            yield prompts([count])
            yield later_chunk(count)
            if slots > 1:
                yield mixed(count)
    kinds = {count for count in KINDS_OF_SIZE if count <= slots} | {slots}
    for count in sorted(kinds.union(decode_sizes), reverse=True):
        if count <= slots:
            yield decoding(count)
    for count in sorted(kinds, reverse=True):
        yield decoding(count, LIMITED)


def _filled(slots: int, step_tokens: int, room: int) -> list[int]:
    """Return prompts that fill a step."""
    longest = min(step_tokens, room - 1)
    prompts = [longest] * min(slots, step_tokens // longest)
    rest = step_tokens - sum(prompts)
    return [*prompts, rest] if rest and len(prompts) < slots else prompts


def prompts(counts: Sequence[int]) -> Step:
    """Return a step of new requests; those with one token come first."""
    lengths = int32(sorted(counts, key=lambda count: count > 1))
    slots = np.arange(len(lengths), dtype=np.int32)
    return _step(slots, lengths, np.zeros_like(lengths), _admitted(slots, 0))


def later_chunk(count: int, context: int = 0, requests: int = 1) -> Step:
    """Return a step with later parts of prompts, by default the second half of one."""
    slots, context = np.arange(requests, dtype=np.int32), context or count
    lengths, before = np.full_like(slots, count), np.full_like(slots, context)
    return _step(slots, lengths, before, _admitted(slots, context))


def mixed(count: int, decodes: int = 1, context: int = 1) -> Step:
    """Return a step in which some requests decode and another begins with `count` tokens."""
    slots = np.arange(decodes + 1, dtype=np.int32)
    lengths, before = np.ones_like(slots), np.full_like(slots, context)
    lengths[-1], before[-1] = count, 0
    step = _step(slots, lengths, before, _admitted(slots, 0))
    step.admissions.context[:] = before
    step.tokens[:decodes] = FROM_DEVICE
    return step


def decoding(count: int, wants: Mapping[str, float] = GREEDY, *, bias: bool = False) -> Step:
    """Return a step in which each of `count` requests decodes; a bias is one that adds 0."""
    slots, ones = np.arange(count, dtype=np.int32), np.ones(count, dtype=np.int32)
    admitted = _admitted(slots, 1, wants)
    if bias:
        admitted.bias_ids = admitted.bias_values = Ragged.of([[0]] * count)
    step = _step(slots, ones, ones, admitted)
    step.tokens[:] = FROM_DEVICE
    return step


def _step(
    slots: NDArray[np.int32],
    lengths: NDArray[np.int32],
    context: NDArray[np.int32],
    admissions: Admissions,
) -> Step:
    starts = np.zeros(len(slots) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    return Step(
        id=_STEP,
        decode_requests=int((lengths == 1).sum()),
        slots=slots,
        starts=starts,
        context=context,
        drafts=np.zeros(len(slots), dtype=np.int32),
        rows=np.full(len(slots), Rows.LAST, dtype=np.int32),
        tokens=np.zeros(starts[-1], dtype=np.int32),
        admissions=admissions,
    )


def _admitted(
    slots: NDArray[np.int32], context: int, wants: Mapping[str, float] = GREEDY
) -> Admissions:
    """Return admissions of requests that choose in one way."""
    count = len(slots)

    def floats(value: float) -> NDArray[np.float32]:
        return np.full(count, value, dtype=np.float32)

    def none() -> Ragged:
        return Ragged.of([[] for _ in range(count)])

    return Admissions(
        slots=slots,
        context=np.full(count, context, dtype=np.int32),
        produced=np.zeros(count, dtype=np.int32),
        seeds=np.zeros((count, 2), dtype=np.int32),
        top_k=np.full(count, wants["top_k"], dtype=np.int32),
        min_tokens=np.zeros(count, dtype=np.int32),
        logprobs=np.full(count, -1, dtype=np.int32),
        temperature=floats(wants["temperature"]),
        top_p=floats(wants["top_p"]),
        min_p=floats(wants["min_p"]),
        presence=floats(0.0),
        frequency=floats(0.0),
        repetition=floats(1.0),
        bias_ids=none(),
        bias_values=none(),
        allowed=none(),
        stops=none(),
        bad_words=none(),
        prompt=none(),
        outputs=none(),
    )
