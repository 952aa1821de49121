"""Decode steps as recorded graphs, one for each padded number of requests.

In a graph everything about a step is derived on the device from the slots: last tokens, exact
lengths, page tables. The host fills one small buffer and replays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.attention import AttentionMeta, GraphLevel
from ..contracts.quant import StepContext
from ..contracts.scheduler import Rows
from .metadata import Slice, StepTensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..step import Step
    from .torch_executor import TorchExecutor


def padded_sizes(most: int) -> list[int]:
    """Return the numbers of requests that graphs are recorded for, ascending up to `most`."""
    steps = [1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, most + 32, 32)]
    return sorted({min(size, most) for size in steps})


@dataclass(slots=True)
class _Recording:
    """A graph and the buffers that it reads and writes: it knows their addresses only."""

    slots: torch.Tensor
    metas: list[AttentionMeta]
    logits: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """Records a decode step when it is first needed, and replays it after that."""

    def __init__(self, executor: TorchExecutor, most_requests: int, room: int) -> None:
        """Record nothing yet.

        Args:
            executor: Whose model, memory and state the graphs run on.
            most_requests: Largest step.
            room: Longest sequence; attention plans for it.
        """
        self.executor = executor
        self.sizes = padded_sizes(most_requests)
        self.room = room
        self.replays = 0
        self._recorded: dict[int, _Recording] = {}

    @staticmethod
    def allowed(executor: TorchExecutor) -> bool:
        """Return whether every part can be recorded."""
        backends = [group.decode for group in executor.parts.groups]
        return (
            all(one.graph_level >= GraphLevel.SINGLE_TOKEN for one in backends)
            and executor.parts.speculator is None
        )

    def fits(self, step: Step) -> bool:
        """Return whether a step is a pure decode: one token and one row for every request."""
        count = len(step.slots)
        return (
            step.decode_requests == count
            and count <= self.sizes[-1]
            and bool((step.rows == Rows.LAST).all())
            and bool((step.tokens < 0).all())
        )

    def run(self, slots: torch.Tensor) -> torch.Tensor:
        """Run a decode step of these slots, int64 [B]; return float32 logits [B, V].

        Lengths are advanced. The logits are good until the next step of the same size.
        """
        count = len(slots)
        size = self.sizes[int(np.searchsorted(self.sizes, count))]
        recording = self._recorded.get(size)
        if recording is None:
            recording = self._recorded[size] = self._record(size)
        recording.slots[:count] = slots
        recording.slots[count:] = self.executor.parts.state.padding
        recording.replay()
        self.replays += 1
        return recording.logits[:count]

    def _record(self, size: int) -> _Recording:
        state = self.executor.parts.state
        slots = torch.full((size,), state.padding, dtype=torch.int64, device=state.device)
        produced: list[torch.Tensor] = []
        metas = self._plans(size, slots)

        def step() -> None:
            produced[:] = [self._step(slots, metas)]

        replay = self.executor.parts.hardware.capture(step)
        return _Recording(slots, metas, produced[0], replay)

    def _plans(self, size: int, slots: torch.Tensor) -> list[AttentionMeta]:
        """Let attention choose its splits for the largest step of this size."""
        state = self.executor.parts.state
        starts = np.arange(size + 1, dtype=np.int32)
        metas = []
        for table, group in zip(state.tables, self.executor.parts.groups, strict=True):
            meta = AttentionMeta(
                decode_requests=size,
                query_start=torch.from_numpy(starts).to(state.device, torch.int64),
                context=torch.zeros(size, dtype=torch.int64, device=state.device),
                positions=torch.zeros(size, dtype=torch.int64, device=state.device),
                request=torch.arange(size, device=state.device),
                page_table=table[slots],
                write_page=torch.zeros(size, dtype=torch.int64, device=state.device),
                write_offset=torch.zeros(size, dtype=torch.int64, device=state.device),
                host_query_start=starts,
                host_context=np.full(size, self.room - 1, dtype=np.int32),
            )
            meta.plan = group.decode.plan(meta, capture=True)
            metas.append(meta)
        return metas

    def _step(self, slots: torch.Tensor, metas: list[AttentionMeta]) -> torch.Tensor:
        """Run a decode step on fixed buffers: what a graph records."""
        parts = self.executor.parts
        state = parts.state
        positions = state.lengths[slots]
        groups = []
        for table, group, meta in zip(state.tables, parts.groups, metas, strict=True):
            # the buffers that the plan knows are filled, not replaced
            meta.context.copy_(positions)
            meta.positions.copy_(positions)
            meta.page_table.copy_(table[slots])
            page = positions // group.page_tokens
            meta.write_page.copy_(meta.page_table.gather(1, page[:, None])[:, 0])
            meta.write_offset.copy_(positions - page * group.page_tokens)
            groups.append([Slice(group.decode, meta, slice(0, len(slots)))])
        tokens = state.last_token[slots]
        tensors = StepTensors(slots, tokens, torch.ones_like(slots), positions, groups, None)
        handover, _ = self.executor.forward(tensors)
        logits = parts.model.logits(parts.model.norm(handover), StepContext(tokens=len(slots)))
        # padding shares one slot, which stays empty
        state.lengths[slots] = torch.where(slots == state.padding, 0, positions + 1)
        return logits
