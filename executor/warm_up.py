"""Warming up: every kind of step once, before the first request comes.

Kernels are compiled for the kinds of sizes that they meet (1, a multiple of 16, any other),
libraries choose plans when first called, and memory grows to what the largest step needs. All of
that happens here, on slots and pages that nobody has yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.errors import DeviceError

from .warm_steps import decoding, largest_steps, warm_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .torch_executor import TorchExecutor


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
        for step in warm_steps(slots, step_tokens, room, decode_sizes):
            executor.launch(step)
            executor.sample(step.id)
            executor.wait(step.id)
    except torch.OutOfMemoryError as error:
        free = executor.parts.hardware.memory().free
        raise DeviceError(
            f"a step of {step_tokens} tokens does not fit beside weights and pages "
            f"({free / 2**20:.0f} MiB are free); lower cache.memory or scheduler.step_tokens"
        ) from error
    forget(executor)


@torch.inference_mode()
def run_largest(executor: TorchExecutor, *, slots: int, step_tokens: int, room: int) -> None:
    """Run the steps that take most memory: full of prompts, and with all slots. See `warm_up`."""
    for step in (*largest_steps(slots, step_tokens, room), decoding(slots)):
        executor.launch(step)
        executor.sample(step.id)
        executor.wait(step.id)


def forget(executor: TorchExecutor) -> None:
    """Take back what such steps did to slots and to the null page."""
    state = executor.parts.state
    state.lengths.zero_()
    state.last_token.zero_()
    state.drafts.fill_(-1)
    null = torch.arange(state.ratio, device=state.device)
    for group in executor.parts.groups:
        group.fill(null, 0.0)
