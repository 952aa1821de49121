"""Nano-batches of a step side by side, so that one computes while another one waits for memory.

Source: Zhu et al., "NanoFlow", arXiv 2408.12757. Its parts are operations with a share of the
multiprocessors each; here a part is a chain of layers in a stream of its own, launched layer by
layer in turn, and the device shares itself out.

    stream of the steps  -- slots, tables --+-- largest part --------------+-- head, tokens --
    stream 1                                +-- next part (often decodes) -+

Between the fork and the meeting nothing is ordered. No part reads pages that another one writes:
pages become matchable when their step is launched. Memory that a stream gave back goes to that
stream again, which begins every step behind all that was launched before.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from camshaft.contracts.model import Handover
from camshaft.contracts.quant import StepContext

from .graphs import DecodeGraphs
from .metadata import step_tensors
from .part_of_step import nano_batches
from .pieces import LayerGraphs
from .rows import LogitRows, picked, rows_alone
from .upload import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from camshaft.step import Step

    from .torch_executor import TorchExecutor


class _Left(NamedTuple):
    """What a part leaves for the choice of tokens: [n, V] of a graph, or [n, C] for the head."""

    logits: torch.Tensor | None = None
    rows: Handover | None = None


class SideBySide:
    """Runs the parts of a step in streams, the largest in that of the steps.

    Attributes:
        runs: Steps so far.
    """

    def __init__(self, executor: TorchExecutor) -> None:
        """Record nothing yet; see `TorchExecutor` for what runs a part."""
        self.runs = 0
        self._executor = executor
        self._graphs: dict[int, DecodeGraphs] = {}
        self._pieces: dict[int, LayerGraphs] = {}

    def forget(self) -> None:
        """Forget recordings that read pages; see `DecodeGraphs.forget`."""
        for graphs in (*self._graphs.values(), self._executor.graphs):
            if graphs is not None:
                graphs.forget()

    def fits(self, step: Step) -> bool:
        """Return whether a step has parts, and every backend can attend for them side by side.

        One that reads or pools prompts is run as a whole, which computes the same.
        """
        parts = self._executor.parts
        return (
            len(step.nano_batch) > 0
            and not len(step.reads)
            and not len(step.pooling)
            and parts.speculator is None
            and all(one.prefill.side_by_side and one.decode.side_by_side for one in parts.groups)
        )

    def run(self, step: Step) -> tuple[LogitRows | None, torch.Tensor | None]:
        """Run all layers and the head. Lengths are advanced.

        Args:
            step: With nano-batches. What it changes in slots and tables is launched.

        Returns:
            The rows with logits, if there are any, and their logits float32 [Q, V].
        """
        self.runs += 1
        parts = nano_batches(step)
        sizes = [len(part.tokens) for part in parts]
        lanes = sorted(range(len(parts)), key=lambda number: -sizes[number])
        left = self._all_layers([parts[number] for number in lanes])
        by_number = [left[lanes.index(number)] for number in range(len(parts))]
        rows = rows_alone(step, self._executor.parts.state)
        if rows is None:
            return None, None
        return rows, self._in_step_order(step, rows, self._logits(by_number))

    def _all_layers(self, parts: Sequence[Step]) -> list[_Left]:
        """Run parts, number 0 in the current stream, and let that wait for the others."""
        start = self._executor.parts.hardware.event()
        start.record()
        chains = {lane: self._chain(lane, part) for lane, part in enumerate(parts)}
        waiting = deque(reversed(chains))  # a replayed part is launched by one call: it goes first
        left: dict[int, _Left] = {}
        try:
            for lane in chains:
                with self._stream(lane):
                    start.join()
            while waiting:
                lane = waiting.popleft()
                with self._stream(lane):
                    result = next(chains[lane])
                if result is None:
                    waiting.append(lane)
                else:
                    left[lane] = result
        finally:
            self._meet(len(parts))
        return [left[lane] for lane in chains]

    def _meet(self, lanes: int) -> None:
        """Let the current stream wait for all others, also for those of a step that failed."""
        for lane in range(1, lanes):
            end = self._executor.parts.hardware.event()
            with self._stream(lane):
                end.record()
            end.join()

    def _stream(self, lane: int) -> AbstractContextManager[Any]:
        return self._executor.parts.hardware.stream(lane) if lane else nullcontext()

    def _chain(self, lane: int, part: Step) -> Iterator[_Left | None]:
        """Run a part, a layer at each turn; yield what it leaves at last."""
        executor = self._executor
        parts, shared = executor.parts, executor.shared(part)
        graphs = self._graphs_of(lane)
        if graphs is not None and graphs.fits(part):
            yield _Left(logits=graphs.begin(part.slots, None, shared)())
            return
        tensors = step_tensors(part, parts.state, parts.groups, shared)
        pieces = self._pieces_of(lane)
        layers = executor.by_layer(tensors) if pieces is None else pieces.by_layer(tensors)
        handover: Handover | None = None
        for handover in layers:
            if handover is None:
                yield None
        assert handover is not None
        parts.state.lengths[tensors.slots] += tensors.lengths
        yield _Left(rows=None if tensors.rows is None else picked(handover, tensors.rows.tokens))

    def _graphs_of(self, lane: int) -> DecodeGraphs | None:
        """Return the recordings of a lane: in lane 0 those of whole steps."""
        whole = self._executor.graphs
        if not lane or whole is None:
            return whole
        if lane not in self._graphs:
            most = whole.sizes[-1]
            self._graphs[lane] = DecodeGraphs(self._executor, most, whole.room, lane)
        return self._graphs[lane]

    def _pieces_of(self, lane: int) -> LayerGraphs | None:
        whole = self._executor.pieces
        if not lane or whole is None:
            return whole
        if lane not in self._pieces:
            self._pieces[lane] = LayerGraphs(self._executor, whole.sizes[-1], lane)
        return self._pieces[lane]

    def _logits(self, left: Sequence[_Left]) -> torch.Tensor:
        """Return the logits of all parts, one behind the other; the head runs once, at most."""
        model = self._executor.parts.model
        rows = [one.rows for one in left if one.rows is not None]
        done: Iterator[torch.Tensor] = iter(())
        if rows:
            together = _joined(rows)
            context = StepContext(tokens=len(together.hidden))
            logits = model.logits(model.norm(together), context)
            done = iter(logits.split([len(one.hidden) for one in rows]))
        found = [
            one.logits if one.rows is None else next(done)
            for one in left
            if one.logits is not None or one.rows is not None
        ]
        return torch.cat([one for one in found if one is not None])

    def _in_step_order(self, step: Step, rows: LogitRows, logits: torch.Tensor) -> torch.Tensor:
        """Put rows that stand part by part into the order of the step."""
        counts = np.diff(rows.context.host_rows)
        numbers = np.repeat(step.nano_batch[rows.requests], counts)
        if (numbers[1:] >= numbers[:-1]).all():
            return logits
        places = numbers.argsort(kind="stable").argsort()
        return logits[to_device(places, self._executor.parts.state.device)]


def _joined(rows: Sequence[Handover]) -> Handover:
    residuals = [one.residual for one in rows if one.residual is not None]
    return Handover(
        torch.cat([one.hidden for one in rows]), torch.cat(residuals) if residuals else None
    )
