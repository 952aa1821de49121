"""What two operations gain when they run side by side on one device.

Kernels of two streams share its processors as the hardware likes: a product that fills all of them
leaves little for attention beside it, however different their needs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.model import Handover
from camshaft.contracts.quant import StepContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.executor.metadata import StepTensors
    from camshaft.executor.torch_executor import TorchExecutor

_LEAST_S = 0.02
"""Seconds that each side takes, so that neither is alone for long."""


@torch.inference_mode()
def measured_overlap(executor: TorchExecutor, decoding: StepTensors, tokens: int) -> float:
    """Run what follows attention in one stream and attention of decodes in another one.

    Args:
        executor: On a CUDA device.
        decoding: A step in which all requests decode.
        tokens: Rows that the linears get.

    Returns:
        Share of the shorter side that is hidden behind the longer one; below 0 if together they
        take longer than one after the other.
    """
    linears = _linears(executor, tokens)
    attention = _attention(executor, decoding)
    first, second = _seconds([(linears, 1)]), _seconds([(attention, 1)])
    sides = [(linears, 1 + int(_LEAST_S / first)), (attention, 1 + int(_LEAST_S / second))]
    alone = [_seconds([side]) for side in sides]
    return shared(alone[0], alone[1], _seconds(sides))


def shared(first_s: float, second_s: float, both_s: float) -> float:
    """Return what was gained, as a share of the shorter one; at least -1 and at most 1."""
    gained = (first_s + second_s - both_s) / min(first_s, second_s)
    return max(-1.0, min(1.0, gained))


def _linears(executor: TorchExecutor, tokens: int) -> Callable[[], object]:
    model = executor.parts.model
    layer, context = model.layers[0], StepContext(tokens=tokens)
    ids = torch.zeros(tokens, dtype=torch.int64, device=executor.parts.state.device)
    qkv, carried = layer.before(model.embed(ids, context), context)
    attended = torch.randn(
        tokens, layer.attention.heads * layer.attention.value_dim, device=qkv.device
    ).to(qkv.dtype)
    hidden, residual = carried
    # a sum may be written over; each call gets the same
    total = hidden if residual is None else residual

    def work() -> object:
        return layer.after(attended, Handover(hidden, total), context)

    return work


def _attention(executor: TorchExecutor, decoding: StepTensors) -> Callable[[], object]:
    model = executor.parts.model
    layer, context = model.layers[0], StepContext(tokens=len(decoding.tokens))
    qkv, _ = layer.before(model.embed(decoding.tokens, context), context)
    out = qkv.new_empty((len(qkv), layer.attention.heads * layer.attention.value_dim))

    def work() -> None:
        executor.attend(layer.attention, qkv, decoding, out)

    return work


def _seconds(sides: list[tuple[Callable[[], object], int]]) -> float:
    """Return how long it takes to do each side so many times, each in a stream of its own."""
    streams = [torch.cuda.Stream() for _ in sides]
    for stream, (work, _) in zip(streams, sides, strict=True):  # memory of the stream, workspaces
        with torch.cuda.stream(stream):
            work()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for stream in streams:
        stream.wait_event(start)
    for stream, work in _in_turn(streams, sides):
        with torch.cuda.stream(stream):
            work()
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _in_turn(
    streams: list[torch.cuda.Stream], sides: list[tuple[Callable[[], object], int]]
) -> list[tuple[torch.cuda.Stream, Callable[[], object]]]:
    """Mix the calls of all sides evenly, so that no stream has all its work before another one."""
    calls = [
        (number / count, stream, work)
        for stream, (work, count) in zip(streams, sides, strict=True)
        for number in range(count)
    ]
    calls.sort(key=lambda call: call[0])
    return [(stream, work) for _, stream, work in calls]
