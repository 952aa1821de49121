"""The executor that really runs the model, on whatever device torch has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from camshaft.contracts.executor import Executor
from camshaft.contracts.model import WholeModel
from camshaft.contracts.quant import StepContext

from .graphs import DecodeGraphs
from .metadata import Slice, StepTensors, step_tensors
from .moves import AwaitedLoads, PageMoves
from .outputs import empty_output, host_logprobs, logprob_tensors, recorded_output
from .pieces import LayerGraphs
from .pooling import Pooled, Pooler
from .prefixes import followed
from .reads import Reads, read_prompts
from .rows import LogitRows, picked, rows_alone
from .side_by_side import SideBySide
from .sleeping import Sleeping
from .state import DeviceState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionLayer, SharedPrefixes
    from camshaft.contracts.hardware import Event, HardwareBackend
    from camshaft.contracts.model import Handover, Model
    from camshaft.contracts.moves import Moved, PageMove
    from camshaft.contracts.ops import Ops
    from camshaft.contracts.sampling import Sampled, Sampler
    from camshaft.contracts.speculator import Speculator
    from camshaft.step import Step, StepOutput

    from .groups import GroupMemory
    from .host_pages import HostPages


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
    """A launched step: its logits, later its tokens on their way to the host.

    `chosen` ends a recorded step and returns its tokens, one for each request, -1 where there is
    none; they come back in `landing`. `reports` on prompts come with the results.
    """

    requests: int
    rows: LogitRows | None
    logits: torch.Tensor | None
    hidden: dict[int, torch.Tensor]
    results: dict[str, torch.Tensor]
    event: Event | None = None
    chosen: Callable[[], torch.Tensor] | None = None
    landing: _Landing | None = None
    reports: Sequence[Reads | Pooled] = ()


class _Landing(NamedTuple):
    """Host memory for the tokens of a recorded choice, int64 [slots], and the event behind it."""

    tokens: torch.Tensor
    event: Event


class TorchExecutor(Executor):
    """Runs steps eagerly, in launch order, on one stream."""

    moves_pages = True

    def __init__(self, parts: TorchParts) -> None:
        self.parts = parts
        self.wants_fresh = parts.poison or any(
            backend.needs_zeroed_pages
            for group in parts.groups
            for backend in (group.prefill, group.decode)
        )
        self._has_queues = parts.hardware.device != "cpu"
        self._running: _Flight | None = None
        self.graphs: DecodeGraphs | None = None
        self.pieces: LayerGraphs | None = None
        self.side_by_side = SideBySide(self)
        self._sleeping = Sleeping(self)
        self._flights: dict[int, _Flight] = {}
        self._landings: list[_Landing] = []
        self._moves = PageMoves(parts.groups, parts.hardware, ratio=parts.state.ratio)
        self._awaited: AwaitedLoads | None = None
        self._pooler = Pooler(parts.state.padding + 1, parts.state.device)
        self._sharing = followed(parts.groups, parts.state, parts.speculator)
        self._group_of = {
            layer: index for index, group in enumerate(parts.groups) for layer in group.fields
        }

    @torch.inference_mode()
    def launch(self, step: Step) -> None:
        """See `Executor.launch`."""
        self.complete()
        self._awaited = self._moves.awaited(step)
        try:
            self._launch(step)
        finally:  # a step that failed, too, is the one that others rely on to have waited
            self._join_loads()

    def _launch(self, step: Step) -> None:
        parts, state = self.parts, self.parts.state
        if len(step.copies) or len(step.fresh):
            self._join_loads()
            self._copy_and_wipe(step)
        state.update(step)
        for one in self._sharing:
            if one is not None:
                one.follow(step)
        if len(step.admissions):
            parts.sampler.admit(step.admissions)
        self._flights[step.id] = self._run(step)

    def _run(self, step: Step) -> _Flight:
        """Run the forward pass, up to the logits."""
        count, state = len(step.slots), self.parts.state
        if self.side_by_side.fits(step):
            self._join_loads()
            return _Flight(count, *self.side_by_side.run(step), {}, {})
        if self.graphs is not None and self.graphs.fits(step):
            self._join_loads()
            return self._decode(step, self.graphs)
        tensors = step_tensors(step, state, self.parts.groups, self.shared(step))
        hidden: dict[int, torch.Tensor] = {}
        if self.pieces is not None:
            handover = last(self.pieces.by_layer(tensors))
        else:
            handover, hidden = self.forward(tensors)
        state.lengths[tensors.slots] += tensors.lengths
        model, rows, logits = self.parts.model, tensors.rows, None
        found = (
            read_prompts(step, handover, model, self.parts.sampler, state.padding),
            self._pooler.pool(step, handover, model),
        )
        reports = [one for one in found if one is not None]
        if rows is not None:
            context = StepContext(tokens=len(rows.tokens))
            logits = model.logits(model.norm(picked(handover, rows.tokens)), context)
        return _Flight(count, rows, logits, hidden, {}, reports=reports)

    def _decode(self, step: Step, graphs: DecodeGraphs) -> _Flight:
        """Replay a recorded decode step, with the choice of tokens if that can be recorded."""
        choice = self.parts.sampler.recordable(step.slots)
        end = graphs.begin(step.slots, choice, self.shared(step))
        if choice is not None:
            return _Flight(len(step.slots), None, None, {}, {}, chosen=end)
        return _Flight(len(step.slots), rows_alone(step, self.parts.state), end(), {}, {})

    def shared(self, step: Step) -> list[SharedPrefixes | None]:
        """Return what the step's decoding requests share, in each KV group."""
        count = step.decode_requests
        return [
            None if one is None else one.among(step.slots[:count], step.context[:count])
            for one in self._sharing
        ]

    def _join_loads(self) -> None:
        """Let the step wait for all pages that it awaits."""
        if self._awaited is not None:
            self._awaited.join_all()
            self._awaited = None

    def _copy_and_wipe(self, step: Step) -> None:
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
        hidden: dict[int, torch.Tensor] = {}
        return last(self.by_layer(tensors, hidden)), hidden

    def by_layer(
        self, tensors: StepTensors, hidden: dict[int, torch.Tensor] | None = None
    ) -> Iterator[Handover | None]:
        """Run all layers, one at a time if the model has them; yield the last hand-over.

        Args:
            tensors: Of a step.
            hidden: Takes the hidden states that the speculator asks for, by layer.
        """
        model, speculator = self.parts.model, self.parts.speculator
        wanted = speculator.hidden_layers if speculator is not None else ()
        context = StepContext(tokens=len(tensors.tokens), positions=tensors.positions)

        def attended(layer: AttentionLayer, qkv: torch.Tensor) -> torch.Tensor:
            out = qkv.new_empty((len(qkv), layer.heads * layer.value_dim))
            self.attend(layer, qkv, tensors, out)
            return out

        if isinstance(model, WholeModel):
            yield model.run(tensors.tokens, tensors.positions, attended, context)
            return
        handover = model.embed(tensors.tokens, context)
        for number, layer in enumerate(model.layers):
            if number:
                yield None
            qkv, carried = layer.before(handover, context)
            handover = layer.after(attended(layer.attention, qkv), carried, context)
            if hidden is not None and layer.attention.index in wanted:
                total = handover.hidden
                hidden[layer.attention.index] = (
                    total if handover.residual is None else total + handover.residual
                )
        yield handover

    def attend(
        self, layer: AttentionLayer, qkv: torch.Tensor, tensors: StepTensors, out: torch.Tensor
    ) -> None:
        """Attend over the pages with qkv [T, ...], and leave the result in `out` [T, H * Dv]."""
        group = self._group_of[layer.index]
        if self._awaited is not None:
            self._awaited.join(group, layer.index)
        fields = self.parts.groups[group].fields[layer.index]
        heads = out.view(len(qkv), layer.heads, layer.value_dim)
        for part in tensors.groups[group]:
            self._attend_slice(layer, qkv[part.tokens], fields, part, heads[part.tokens])

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
        flight = self._flights[step]
        try:
            if flight.chosen is None:
                self._sample(flight, masks)
            else:
                assert masks is None, "a recorded choice takes no masks"
                self._running = flight
                if self._has_queues:
                    self.complete()
        except Exception:
            del self._flights[step]
            raise

    def _sample(self, flight: _Flight, masks: NDArray[np.int32] | None) -> None:
        parts = self.parts
        if flight.rows is None or flight.logits is None:
            if flight.reports:
                self._send(flight, {})
            return
        rows = flight.rows.context
        if masks is None and not rows.drafts.shape[1] and not flight.reports:
            choice = parts.sampler.recordable(rows.host_slots)
            if choice is not None:  # the recorded form is the shortest also where nothing records
                chosen = self.choose(choice, flight.logits, rows.slots)
                flight.logits = None
                self._land(flight, chosen)
                return
        device_masks = None if masks is None else torch.from_numpy(masks).to(parts.state.device)
        sampled = parts.sampler.sample(flight.logits, rows, device_masks)
        flight.logits = None
        self._remember(sampled, rows.slots, rows.row_start)
        results = {"tokens": sampled.tokens, "counts": sampled.counts, "finite": sampled.finite}
        if sampled.logprobs is not None:
            results |= logprob_tensors(sampled.logprobs)
        if parts.speculator is not None:
            parts.speculator.verify(rows, sampled)
            drafts = parts.speculator.propose(rows, sampled, flight.hidden)
            parts.state.drafts[rows.slots] = drafts
            results["drafts"] = drafts
        self._send(flight, results)

    @property
    def immediate(self) -> bool:  # type: ignore[override]
        """See `Executor.immediate`."""
        return not self._has_queues and self._running is None

    @torch.inference_mode()
    def complete(self) -> bool:
        """See `Executor.complete`."""
        if self._running is None:
            return False
        flight, self._running = self._running, None
        assert flight.chosen is not None
        self._land(flight, flight.chosen())
        flight.chosen = None
        return True

    def choose(self, choice: Hashable, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Choose in a form that can be recorded, and remember the tokens.

        Args:
            choice: A key of `Sampler.recordable`.
            logits: [B, V], a row for each slot.
            slots: int64 [B].

        Returns:
            int64 [B], -1 where the logits were not finite.
        """
        chosen = self.parts.sampler.record(choice, logits, slots)
        self.parts.state.last_token[slots] = chosen.tokens
        return torch.where(chosen.finite, chosen.tokens, -1)

    def _land(self, flight: _Flight, chosen: torch.Tensor) -> None:
        """Start the copy of chosen tokens, into memory that an earlier step is done with."""
        if self._landings:
            landing = self._landings.pop()
        else:
            hardware = self.parts.hardware
            room = hardware.to_host(torch.empty_like(self.parts.state.last_token))
            landing = _Landing(room, hardware.event())
        landing.tokens[: len(chosen)].copy_(chosen, non_blocking=True)
        landing.event.record()
        flight.landing = landing

    def _send(self, flight: _Flight, results: dict[str, torch.Tensor]) -> None:
        """Start the copies to the host."""
        hardware = self.parts.hardware
        for report in flight.reports:
            results |= report.tensors
        flight.results = {name: hardware.to_host(tensor) for name, tensor in results.items()}
        flight.event = hardware.event()
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
        if flight.chosen is not None:
            self._running = flight
            self.complete()
        if flight.landing is not None:
            flight.landing.event.wait()
            where = None if flight.rows is None else flight.rows.requests
            landed = flight.landing.tokens.numpy()
            output = recorded_output(step, flight.requests, where, landed)
            self._landings.append(flight.landing)
            return output
        if flight.event is not None:
            flight.event.wait()
        host = {name: tensor.numpy() for name, tensor in flight.results.items()}
        if flight.rows is None:
            output = empty_output(step, flight.requests, 1)
        else:
            output = self._output(step, flight.requests, flight.rows.requests, host)
        for report in flight.reports:
            report.tell(host, output)
        return output

    @staticmethod
    def _output(
        step: int, requests: int, where: NDArray[np.int32], host: dict[str, NDArray[np.generic]]
    ) -> StepOutput:
        """Return the output of a step whose requests `where` have tokens."""
        output = empty_output(step, requests, host["tokens"].shape[1])
        output.tokens[where], output.counts[where] = host["tokens"], host["counts"]
        output.finite[where] = host["finite"]
        output.logprobs = host_logprobs(host, where)
        if "drafts" in host:
            shape = (requests, host["drafts"].shape[1])
            output.drafts = np.full(shape, -1, dtype=np.int32)
            output.drafts[where] = host["drafts"]
        return output

    def tray(self, group: int, pages: int) -> HostPages:
        """See `Executor.tray`."""
        return self._moves.tray(group, pages)

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """See `Executor.move`."""
        self.complete()
        self._moves.move(exports, loads)

    def moved(self) -> list[Moved]:
        """See `Executor.moved`."""
        return self._moves.moved()

    def logits_of(self, step: int) -> tuple[NDArray[np.int32], torch.Tensor] | None:
        """Return places [N] of requests in a launched step, and their logits [N, V].

        None where there are none to see: before the head, or once a graph has chosen.
        """
        flight = self._flights[step]
        if flight.rows is None or flight.logits is None:
            return None
        return flight.rows.requests, flight.logits

    def sleep(self) -> int:
        """See `Executor.sleep`."""
        return self._sleeping.begin()

    def wake(self) -> None:
        """See `Executor.wake`."""
        self._sleeping.end()

    def close(self) -> None:
        """See `Executor.close`."""
        self.complete()
        self._flights.clear()
        self.parts.hardware.close()


def last(layers: Iterator[Handover | None]) -> Handover:
    """Run through all layers; return what the last one handed over."""
    handover: Handover | None = None
    for handover in layers:  # noqa: B007 - the last one is returned
        pass
    assert handover is not None
    return handover
