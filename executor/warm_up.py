"""Warming up: every kind of step once, before the first request comes.

Kernels are compiled for the kinds of sizes that they meet (1, a multiple of 16, any other),
libraries choose plans when first called, and memory grows to what the largest step needs. All of
that happens here, on slots and pages that nobody has yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.scheduler import Rows
from camshaft.errors import DeviceError
from camshaft.step import FROM_DEVICE, Admissions, Ragged, Step, int32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from .torch_executor import TorchExecutor

KINDS_OF_SIZE = (1, 2, 16, 17)
"""One number of each kind that a compiler may tell apart, and one more."""

_DRAWN = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "top_k": 40}
_STEP = -1  # an id that no step of a loop has


@torch.inference_mode()
def warm_up(
    executor: TorchExecutor,
    *,
    slots: int,
    step_tokens: int,
    room: int,
    decode_sizes: Sequence[int] = (),
) -> None:
    """Run prompts, chunks, mixed steps and decode steps; leave no trace of them.

    All pages of these requests are the null page, which is zeroed at the end. What a slot holds is
    void when a request takes it, and lengths and last tokens are reset. Call it before the first
    request.

    Args:
        executor: Fresh.
        slots: Most requests that run at once.
        step_tokens: Most tokens of a step.
        room: Longest sequence.
        decode_sizes: Numbers of requests whose recorded decode steps are wanted at once; the others
            are recorded when they first occur.

    Raises:
        DeviceError: The largest step does not fit beside weights and pages.
    """
    try:
        for step in _steps(slots, step_tokens, room, decode_sizes):
            executor.launch(step)
            executor.sample(step.id)
            executor.wait(step.id)
    except torch.OutOfMemoryError as error:
        free = executor.parts.hardware.memory().free
        raise DeviceError(
            f"a step of {step_tokens} tokens does not fit beside weights and pages "
            f"({free / 2**20:.0f} MiB are free); lower cache.memory or scheduler.step_tokens"
        ) from error
    _forget(executor)


@torch.inference_mode()
def run_largest(executor: TorchExecutor, *, slots: int, step_tokens: int, room: int) -> None:
    """Run the steps that take most memory: full of prompts, and with all slots. See `warm_up`."""
    for step in (*_largest(slots, step_tokens, room), _decode(slots, drawn=False)):
        executor.launch(step)
        executor.sample(step.id)
        executor.wait(step.id)


def _largest(slots: int, step_tokens: int, room: int) -> Iterator[Step]:
    yield _prompts(_filled(slots, step_tokens, room))
    many = min(slots, step_tokens)
    yield _prompts([min(step_tokens // many, room - 1)] * many)


def _steps(slots: int, step_tokens: int, room: int, decode_sizes: Sequence[int]) -> Iterator[Step]:
    """Yield the largest step first: memory is then taken in one piece."""
    yield from _largest(slots, step_tokens, room)
    for count in KINDS_OF_SIZE:
        if 2 * count < room and count + 1 <= step_tokens:
            yield _prompts([count])
            yield _later_chunk(count)
            if slots > 1:
                yield _mixed(count)
    kinds = {count for count in KINDS_OF_SIZE if count <= slots} | {slots}
    for count in sorted(kinds.union(decode_sizes), reverse=True):
        if count <= slots:
            yield _decode(count, drawn=False)
    for count in sorted(kinds, reverse=True):
        yield _decode(count, drawn=True)


def _filled(slots: int, step_tokens: int, room: int) -> list[int]:
    """Return prompts that fill a step."""
    longest = min(step_tokens, room - 1)
    prompts = [longest] * min(slots, step_tokens // longest)
    rest = step_tokens - sum(prompts)
    return [*prompts, rest] if rest and len(prompts) < slots else prompts


def _prompts(counts: Sequence[int]) -> Step:
    """Return a step of new requests; those with one token come first."""
    lengths = int32(sorted(counts, key=lambda count: count > 1))
    slots = np.arange(len(lengths), dtype=np.int32)
    return _step(slots, lengths, np.zeros_like(lengths), _admitted(slots, 0, drawn=False))


def _later_chunk(count: int) -> Step:
    """Return a step with the second half of a prompt."""
    slot = int32([0])
    return _step(slot, int32([count]), int32([count]), _admitted(slot, count, drawn=False))


def _mixed(count: int) -> Step:
    """Return a step in which one request decodes and another begins."""
    slots = int32([0, 1])
    step = _step(slots, int32([1, count]), int32([1, 0]), _admitted(slots, 0, drawn=False))
    step.admissions.context[0] = 1
    step.tokens[0] = FROM_DEVICE
    return step


def _decode(count: int, *, drawn: bool) -> Step:
    """Return a step in which each of `count` requests decodes."""
    slots, ones = np.arange(count, dtype=np.int32), np.ones(count, dtype=np.int32)
    step = _step(slots, ones, ones, _admitted(slots, 1, drawn=drawn))
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


def _admitted(slots: NDArray[np.int32], context: int, *, drawn: bool) -> Admissions:
    """Return admissions of requests that are greedy, or draw with every limit."""
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
        top_k=np.full(count, _DRAWN["top_k"] if drawn else 0, dtype=np.int32),
        min_tokens=np.zeros(count, dtype=np.int32),
        logprobs=np.full(count, -1, dtype=np.int32),
        temperature=floats(_DRAWN["temperature"] if drawn else 0.0),
        top_p=floats(_DRAWN["top_p"] if drawn else 1.0),
        min_p=floats(_DRAWN["min_p"] if drawn else 0.0),
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


def _forget(executor: TorchExecutor) -> None:
    state = executor.parts.state
    state.lengths.zero_()
    state.last_token.zero_()
    state.drafts.fill_(-1)
    null = torch.arange(state.ratio, device=state.device)
    for group in executor.parts.groups:
        group.fill(null, 0.0)
