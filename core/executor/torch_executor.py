"""The executor that really runs the model, on whatever device torch has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.executor import Executor
from ..contracts.model import Handover
from ..contracts.quant import StepContext
from ..step import LogprobRows, Step, StepOutput
from .graphs import DecodeGraphs
from .metadata import Slice, StepTensors, step_tensors
from .rows import HostRows, LogitRows
from .state import DeviceState
from .upload import Upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..contracts.attention import AttentionLayer
    from ..contracts.hardware import Event, HardwareBackend
    from ..contracts.model import Model
    from ..contracts.ops import Ops
    from ..contracts.sampling import DeviceLogprobs, Sampled, Sampler
    from ..contracts.speculator import Speculator
    from .groups import GroupMemory


@dataclass(slots=True)
class TorchParts:
    """What the executor runs.

    Attributes:
        model: All layers.
        groups: Memory and backends of each KV group.
        sampler: Chooses tokens.
        hardware: The device, open.
        ops: The operations table.
        state: Per-slot state.
        speculator: Or None.
        poison: Fill pages that change hands with NaN.
    """

    model: Model
    groups: list[GroupMemory]
    sampler: Sampler
    hardware: HardwareBackend
    ops: Ops
    state: DeviceState
    speculator: Speculator | None = None
    poison: bool = False


@dataclass(slots=True)
class _Flight:
    """A launched step: its logits, later its tokens on their way to the host."""

    requests: int
    rows: LogitRows | None
    logits: torch.Tensor | None
    hidden: dict[int, torch.Tensor]
    results: dict[str, torch.Tensor]
    event: Event | None = None


class TorchExecutor(Executor):
    """Runs steps eagerly, in launch order, on one stream."""

    def __init__(self, parts: TorchParts) -> None:
        self.parts = parts
        self.wants_fresh = parts.poison or any(
            backend.needs_zeroed_pages
            for group in parts.groups
            for backend in (group.prefill, group.decode)
        )
        self.graphs: DecodeGraphs | None = None
        self._flights: dict[int, _Flight] = {}
        self._group_of = {
            layer: index for index, group in enumerate(parts.groups) for layer in group.fields
        }

    @torch.inference_mode()
    def launch(self, step: Step) -> None:
        """See `Executor.launch`."""
        parts, state = self.parts, self.parts.state
        if len(step.copies) or len(step.fresh):
            self._move_pages(step)
        state.update(step)
        if len(step.admissions):
            parts.sampler.admit(step.admissions)
        if self.graphs is not None and self.graphs.fits(step):
            self._flights[step.id] = self._decode(step, self.graphs)
            return
        tensors = step_tensors(step, state, parts.groups)
        handover, hidden = self.forward(tensors)
        state.lengths[tensors.slots] += tensors.lengths
        rows, logits = tensors.rows, None
        if rows is not None:
            residual = handover.residual
            picked = Handover(
                handover.hidden[rows.tokens], None if residual is None else residual[rows.tokens]
            )
            context = StepContext(tokens=len(rows.tokens))
            logits = parts.model.logits(parts.model.norm(picked), context)
        self._flights[step.id] = _Flight(len(step.slots), rows, logits, hidden, {})

    def _decode(self, step: Step, graphs: DecodeGraphs) -> _Flight:
        """Replay a recorded decode step."""
        host_rows = HostRows.of(step)
        assert host_rows is not None
        upload = Upload()
        host_rows.add_to(upload)
        upload.send(self.parts.state.device)
        rows = host_rows.on_device(upload, step, self.parts.state)
        logits = graphs.run(rows.context.slots)
        return _Flight(len(step.slots), rows, logits, {}, {})

    def _move_pages(self, step: Step) -> None:
        groups, ratio = self.parts.groups, self.parts.state.ratio
        spread = np.arange(ratio)
        for index, group in enumerate(groups):
            fresh = step.fresh[step.fresh[:, 0] == index, 1]
            if len(fresh):
                pages = torch.from_numpy((fresh[:, None] * ratio + spread).ravel())
                needs_zero = group.prefill.needs_zeroed_pages or group.decode.needs_zeroed_pages
                value = 0.0 if needs_zero else float("nan")
                group.fill(pages.long().to(self.parts.state.device), value)
            copies = step.copies[step.copies[:, 0] == index, 1:]
            if len(copies):  # after the fill: the page that a fork copies into is fresh as well
                source, target = (
                    (copies[:, side, None] * ratio + spread).ravel() for side in (0, 1)
                )
                self.parts.hardware.copy_pages(group.all_fields(), source.tolist(), target.tolist())

    def forward(self, tensors: StepTensors) -> tuple[Handover, dict[int, torch.Tensor]]:
        """Run all layers; return the last hand-over and the hidden states that were asked for."""
        model, speculator = self.parts.model, self.parts.speculator
        wanted = speculator.hidden_layers if speculator is not None else ()
        context = StepContext(tokens=len(tensors.tokens))
        handover = model.embed(tensors.tokens, context)
        hidden: dict[int, torch.Tensor] = {}
        for layer in model.layers:
            qkv, carried = layer.before(handover, context)
            attended = self._attend(layer.attention, qkv, tensors)
            handover = layer.after(attended, carried, context)
            if layer.attention.index in wanted:
                total = handover.hidden
                hidden[layer.attention.index] = (
                    total if handover.residual is None else total + handover.residual
                )
        return handover, hidden

    def _attend(
        self, layer: AttentionLayer, qkv: torch.Tensor, tensors: StepTensors
    ) -> torch.Tensor:
        group = self._group_of[layer.index]
        fields = self.parts.groups[group].fields[layer.index]
        out = qkv.new_empty((len(qkv), layer.heads, layer.value_dim))
        for part in tensors.groups[group]:
            self._attend_slice(layer, qkv[part.tokens], fields, part, out[part.tokens])
        return out.view(len(qkv), -1)

    def _attend_slice(
        self,
        layer: AttentionLayer,
        qkv: torch.Tensor,
        fields: dict[str, torch.Tensor],
        part: Slice,
        out: torch.Tensor,
    ) -> None:
        q = part.backend.prepare(layer, qkv, fields, part.meta)
        if q is not None:
            part.backend.forward(layer, q, None, None, fields, part.meta, out)
            return
        q, k, v = self.parts.ops.rope_qk_norm(qkv, part.meta.positions, layer)
        part.backend.forward(layer, q, k, v, fields, part.meta, out)

    @torch.inference_mode()
    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """See `Executor.sample`."""
        flight, parts = self._flights[step], self.parts
        if flight.rows is None or flight.logits is None:
            return
        rows = flight.rows.context
        device_masks = None if masks is None else torch.from_numpy(masks).to(parts.state.device)
        sampled = parts.sampler.sample(flight.logits, rows, device_masks)
        flight.logits = None
        self._remember(sampled, rows.slots, rows.row_start)
        to_host = parts.hardware.to_host
        results = {"tokens": sampled.tokens, "counts": sampled.counts, "finite": sampled.finite}
        if sampled.logprobs is not None:
            results |= _logprob_tensors(sampled.logprobs)
        if parts.speculator is not None:
            parts.speculator.verify(rows, sampled)
            drafts = parts.speculator.propose(rows, sampled, flight.hidden)
            parts.state.drafts[rows.slots] = drafts
            results["drafts"] = drafts
        flight.results = {name: to_host(tensor) for name, tensor in results.items()}
        flight.event = parts.hardware.event()
        flight.event.record()

    def _remember(self, sampled: Sampled, slots: torch.Tensor, row_start: torch.Tensor) -> None:
        """Keep the newest token of each slot, and take rejected drafts off its length."""
        state = self.parts.state
        last = sampled.tokens.gather(1, (sampled.counts - 1).clamp(min=0)[:, None])[:, 0]
        state.last_token[slots] = last
        rows = row_start[1:] - row_start[:-1]
        state.lengths[slots] -= rows - sampled.counts

    def wait(self, step: int) -> StepOutput:
        """See `Executor.wait`."""
        flight = self._flights.pop(step)
        if flight.event is not None:
            flight.event.wait()
        count = flight.requests
        if flight.rows is None:
            return StepOutput(
                step,
                np.zeros((count, 1), dtype=np.int32),
                np.zeros(count, dtype=np.int32),
                np.ones(count, dtype=np.bool_),
            )
        host = {name: tensor.numpy() for name, tensor in flight.results.items()}
        where = flight.rows.requests
        tokens = np.zeros((count, host["tokens"].shape[1]), dtype=np.int32)
        counts = np.zeros(count, dtype=np.int32)
        finite = np.ones(count, dtype=np.bool_)
        tokens[where], counts[where], finite[where] = host["tokens"], host["counts"], host["finite"]
        output = StepOutput(step, tokens, counts, finite, _host_logprobs(host, where))
        if "drafts" in host:
            output.drafts = np.full((count, host["drafts"].shape[1]), -1, dtype=np.int32)
            output.drafts[where] = host["drafts"]
        return output

    def close(self) -> None:
        """See `Executor.close`."""
        self._flights.clear()
        self.parts.hardware.close()


def _logprob_tensors(one: DeviceLogprobs) -> dict[str, torch.Tensor]:
    return {
        "request": one.request,
        "offset": one.offset,
        "chosen": one.chosen,
        "rank": one.rank,
        "ids": one.ids,
        "values": one.values,
    }


def _host_logprobs(
    host: dict[str, NDArray[np.generic]], where: NDArray[np.int32]
) -> LogprobRows | None:
    if "chosen" not in host:
        return None
    return LogprobRows(
        row=where[host["request"].astype(np.int64)],
        offset=host["offset"].astype(np.int32),
        chosen=host["chosen"].astype(np.float32),
        rank=host["rank"].astype(np.int32),
        ids=host["ids"].astype(np.int32),
        values=host["values"].astype(np.float32),
    )
