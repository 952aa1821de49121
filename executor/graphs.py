"""Decode steps as recorded graphs, one for each padded number of requests.

In a graph everything about a step is derived on the device from the slots: last tokens, exact
lengths, page tables and, where the sampler can be recorded, the chosen tokens. The host replays; it
sends the slots only when they are others than in the last replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.attention import AttentionMeta, GraphLevel, SharedPrefixes
from camshaft.contracts.quant import StepContext
from camshaft.contracts.scheduler import Rows

from .metadata import Slice, StepTensors
from .upload import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.hardware import Outputs, Recording
    from camshaft.step import Step

    from .torch_executor import TorchExecutor


def padded_sizes(most: int, exact: int = 0) -> list[int]:
    """Return the numbers of requests that graphs are recorded for, ascending up to `most`.

    Args:
        most: Largest step.
        exact: See `HardwareBackend.exact_sizes`.
    """
    steps = [1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, most + 32, 32)]
    steps += range(1, exact + 1)
    return sorted({min(size, most) for size in steps})


@dataclass(slots=True)
class _Recording:
    """A graph and the buffers that it reads and writes: it knows their addresses only.

    Attributes:
        slots: int64 [size], padded.
        metas: What attention reads; kept alive.
        graph: Returns what `DecodeGraphs.run` does, for all `size` rows.
        held: What `slots` holds.
        shared: What the plan of each KV group knows of shared prefixes.
    """

    slots: torch.Tensor
    metas: list[AttentionMeta]
    graph: Recording
    held: NDArray[np.int64]
    shared: list[SharedPrefixes | None]


class DecodeGraphs:
    """Records a decode step when it is first needed, and replays it after that."""

    def __init__(
        self, executor: TorchExecutor, most_requests: int, room: int, lane: int = 0
    ) -> None:
        """Record nothing yet.

        Args:
            executor: Whose model, memory and state the graphs run on.
            most_requests: Largest step.
            room: Longest sequence; attention plans for it.
            lane: See `HardwareBackend.capture`.
        """
        self.executor = executor
        self.lane = lane
        self.sizes = padded_sizes(most_requests, executor.parts.hardware.exact_sizes)
        self.room = room
        self.replays = 0
        self._recorded: dict[tuple[int, Hashable, tuple[bool, ...], bool], _Recording] = {}

    def forget(self) -> None:
        """Forget all recordings: the memory that they read has moved."""
        self._recorded.clear()

    @staticmethod
    def allowed(executor: TorchExecutor) -> bool:
        """Return whether every part can be recorded."""
        backends = [group.decode for group in executor.parts.groups]
        return (
            all(one.graph_level >= GraphLevel.SINGLE_TOKEN for one in backends)
            and executor.parts.speculator is None
            and executor.parts.model.recordable
        )

    def fits(self, step: Step) -> bool:
        """Return whether a step is a pure decode: one token and one row for every request."""
        count = len(step.slots)
        return (
            step.decode_requests == count
            and count <= self.sizes[-1]
            and bool((step.rows == Rows.LAST).all())
            and bool((step.tokens < 0).all())
            and not len(step.pooling)
        )

    def begin(
        self,
        slots: NDArray[np.int32],
        choice: Hashable,
        shared: Sequence[SharedPrefixes | None],
    ) -> Callable[[], torch.Tensor]:
        """Start a decode step of these slots [B]. Lengths are advanced.

        Args:
            slots: Of the requests.
            choice: A key of `Sampler.recordable`, or None to stop at the logits.
            shared: Of each KV group. Who shares nothing runs graphs that know of no sharing.

        Returns:
            What ends the step, see `Recording.begin`. With a key it returns the chosen tokens,
            int64 [B], -1 where the logits were not finite; they are the slots' last tokens then.
            Without one it returns the logits [B, V]. Good until the next run.
        """
        count = len(slots)
        size = self.sizes[int(np.searchsorted(self.sizes, count))]
        sharing = tuple(one is not None for one in shared)
        shifted = self.executor.parts.state.shifts(slots)
        recording = self._recorded.get((size, choice, sharing, shifted))
        if recording is None:
            recording = self._record(size, choice, sharing, shifted)
            self._recorded[size, choice, sharing, shifted] = recording
        self._send_slots(recording, slots)
        self._send_shared(recording, shared)
        end = recording.graph.begin()
        self.replays += 1

        def ended() -> torch.Tensor:
            (result,) = end()
            assert result is not None
            return result[:count]

        return ended

    def _send_slots(self, recording: _Recording, slots: NDArray[np.int32]) -> None:
        """Fill the graph's slots, unless they are there from the last step."""
        state = self.executor.parts.state
        padded = np.full(len(recording.held), state.padding, dtype=np.int64)
        padded[: len(slots)] = slots
        if not np.array_equal(padded, recording.held):
            recording.slots.copy_(to_device(padded, state.device))
            recording.held = padded

    def _send_shared(self, recording: _Recording, shared: Sequence[SharedPrefixes | None]) -> None:
        """Tell the plans who shares what, unless they know from the last step."""
        for index, one in enumerate(shared):
            if one is not None and one is not recording.shared[index]:
                decode = self.executor.parts.groups[index].decode
                decode.share(recording.metas[index].plan, one)
                recording.shared[index] = one

    def _record(
        self, size: int, choice: Hashable, sharing: tuple[bool, ...], shifted: bool
    ) -> _Recording:
        state = self.executor.parts.state
        held = np.full(size, state.padding, dtype=np.int64)
        slots = to_device(held, state.device)
        metas = self._plans(size, slots, sharing, shifted)

        def step() -> Outputs:
            logits = self._step(slots, metas)
            return (logits if choice is None else self.executor.choose(choice, logits, slots),)

        graph = self.executor.parts.hardware.capture(step, self.lane)
        graph.share()
        return _Recording(slots, metas, graph, held, [None] * len(metas))

    def _plans(
        self, size: int, slots: torch.Tensor, sharing: tuple[bool, ...], shifted: bool
    ) -> list[AttentionMeta]:
        """Let attention choose its splits for the largest step of this size."""
        state = self.executor.parts.state
        starts = np.arange(size + 1, dtype=np.int32)
        nobody = SharedPrefixes(np.full(size, -1, dtype=np.int32), np.zeros(0, dtype=np.int32))
        metas = []
        groups = zip(state.tables, self.executor.parts.groups, sharing, strict=True)
        for table, group, shares in groups:
            context = torch.zeros(size, dtype=torch.int64, device=state.device)
            meta = AttentionMeta(
                decode_requests=size,
                query_start=torch.from_numpy(starts).to(state.device, torch.int64),
                context=context,
                # a request's only token stands behind its context
                positions=torch.zeros_like(context) if shifted else context,
                request=torch.arange(size, device=state.device),
                page_table=table[slots],
                write_page=torch.zeros(size, dtype=torch.int64, device=state.device),
                write_offset=torch.zeros(size, dtype=torch.int64, device=state.device),
                host_query_start=starts,
                host_context=np.full(size, self.room - 1, dtype=np.int32),
                shared=nobody if shares else None,
            )
            meta.plan = group.decode.plan(meta, capture=True)
            metas.append(meta)
        return metas

    def _step(self, slots: torch.Tensor, metas: list[AttentionMeta]) -> torch.Tensor:
        """Run a decode step on fixed buffers: what a graph records."""
        parts = self.executor.parts
        state = parts.state
        groups = []
        for table, group, meta in zip(state.tables, parts.groups, metas, strict=True):
            # the buffers that the plan knows are filled, not replaced
            torch.index_select(state.lengths, 0, slots, out=meta.context)
            if meta.positions is not meta.context:
                torch.add(meta.context, state.offsets[slots], out=meta.positions)
            torch.index_select(table, 0, slots, out=meta.page_table)
            torch.remainder(meta.context, group.page_tokens, out=meta.write_offset)
            page = meta.context // group.page_tokens
            meta.write_page.copy_(meta.page_table.gather(1, page[:, None])[:, 0])
            groups.append([Slice(group.decode, meta, slice(0, len(slots)))])
        for layer in parts.model.attentions:
            if layer.rope is not None:
                layer.rope.forget()  # the same buffer holds other positions now
        tokens = state.last_token[slots]
        tensors = StepTensors(slots, tokens, slots, metas[0].positions, groups, None)
        handover, _ = self.executor.forward(tensors)
        logits = parts.model.logits(parts.model.norm(handover), StepContext(tokens=len(slots)))
        # padding shares one slot, which stays empty
        state.lengths[slots] = metas[0].context + 1
        state.lengths[state.padding :].zero_()
        return logits
