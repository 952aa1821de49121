"""Rehearsing steps: all kernels that they launch are compiled beforehand, several at a time.

A kernel takes Triton a few tenths of a second, and an engine needs dozens. Compiled one after the
other, each when its first launch waits for it, they are most of a cold start. Here steps of
every kind run with launches that only say what has to be compiled: a few milliseconds each. So
there can be more of them than a warm-up runs for real: shared prefixes, all ways to choose tokens,
and numbers of requests and lengths for which attention cuts its keys differently.

Nothing depends on their results: what kernels should have written is whatever memory held before.
That may not become an index, or the device would fault. Only tokens could, and they are put back to
zero before anybody reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from camshaft.contracts.attention import SharedPrefixes
from camshaft.contracts.model import Handover, WholeModel
from camshaft.step import int32

from .graphs import DecodeGraphs
from .pieces import LayerGraphs
from .torch_executor import TorchExecutor
from .warm_steps import (
    DRAWN,
    GREEDY,
    LIMITED,
    decoding,
    later_chunk,
    mixed,
    prompts,
    warm_steps,
)
from .warm_up import forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionLayer
    from camshaft.contracts.hardware import HardwareBackend, Outputs
    from camshaft.contracts.model import Layer, Model
    from camshaft.contracts.quant import StepContext
    from camshaft.contracts.sampling import Sampler
    from camshaft.step import Admissions, Step

    from .metadata import StepTensors

LAYERS = 2
"""Of each KV group: the first of a model differs from the others."""

NUMBERS_OF_ROWS = (1, 2, 16, 17)
"""For whose choices kernels may be different."""

FEW_TOKENS = (2, 4, 8, 16)
"""Ends of prompts up to so long may be attended to like decoding requests."""


@torch.inference_mode()
def rehearse(executor: TorchExecutor, *, slots: int, step_tokens: int, room: int) -> None:
    """Run steps for the sake of the kernels that they launch; use it in `compiling_ahead`.

    Args:
        executor: Fresh. Leaves no trace in it.
        slots: Most requests that run at once.
        step_tokens: Most tokens of a step.
        room: Longest sequence.
    """
    actors = _Rehearsal(executor, slots, step_tokens, room)
    sizes = _some(actors.graphs.sizes if actors.graphs is not None else [])
    for step in (*warm_steps(slots, step_tokens, room, ()), *_more(slots, step_tokens, room)):
        actors.play(step)
    actors.only_attend()
    for step in (*map(decoding, sizes), *_chunks(slots, step_tokens, room)):
        actors.play(step)
    for step in _beside(slots, step_tokens, _powers(room - 1)):
        actors.play(step)
    actors.shares = True
    for step in (*map(decoding, sizes), *_beside(slots, step_tokens, [room - 1])):
        actors.play(step)
    forget(executor)


def _some(sizes: Sequence[int]) -> list[int]:
    """Leave out sizes that need what their neighbours need."""
    return [*sizes[:12], *sizes[12::8]]


def _more(slots: int, step_tokens: int, room: int) -> Iterator[Step]:
    """Yield choices of tokens, and numbers of rows, that a warm-up does not run."""
    for count in sorted({min(count, slots) for count in NUMBERS_OF_ROWS}):
        yield decoding(count, DRAWN)
        for wants in (GREEDY, DRAWN, LIMITED):
            yield decoding(count, wants, bias=True)
    yield from map(decoding, _powers(slots))
    for count in _powers(min(step_tokens, room - 1)):
        yield prompts([count])


def _chunks(slots: int, step_tokens: int, room: int) -> Iterator[Step]:
    """Yield short ends of prompts behind contexts of some lengths."""
    for count in FEW_TOKENS:
        longest = room - 1 - count
        for requests in (1, 5, 33):
            if requests <= slots and requests * count <= step_tokens and longest > 0:
                for context in (1, min(256, longest), longest):
                    yield later_chunk(count, context, requests)


def _beside(slots: int, step_tokens: int, contexts: Sequence[int]) -> Iterator[Step]:
    """Yield steps in which requests of some length decode while a short prompt comes."""
    most = min(slots - 1, step_tokens - 2)
    for decodes in (1, *(1 + 2**power for power in range(12))):
        for context in contexts:
            if decodes <= most:
                yield mixed(2, decodes, context)


def _powers(most: int) -> list[int]:
    """Return 1, 4, 16 and so on, and `most`."""
    powers = [4**power for power in range(16)]
    return [*(power for power in powers if power < most), most] if most > 0 else []


class _Rehearsal(TorchExecutor):
    """Runs steps on another executor's memory, through few layers, without recording them.

    Attributes:
        shares: All decoding requests of a step share their first page.
    """

    def __init__(self, executor: TorchExecutor, slots: int, step_tokens: int, room: int) -> None:
        parts = executor.parts
        self._model = _FewLayers(parts.model, _kinds_of_layers(executor, LAYERS))
        is_whole = isinstance(parts.model, WholeModel)  # nothing can be left out of it
        model = parts.model if is_whole else cast("Model", self._model)
        hardware = cast("HardwareBackend", _Unrecorded(parts.hardware))
        super().__init__(replace(parts, model=model, hardware=hardware))
        self._limits = slots, step_tokens, room
        if executor.graphs is not None:
            self.graphs = DecodeGraphs(self, slots, room)
        if executor.pieces is not None:
            self.pieces = LayerGraphs(self, step_tokens)
        self.shares = False
        self._attends_only = False
        self._projections: dict[int, tuple[int, torch.dtype]] = {}

    def play(self, step: Step) -> None:
        """Run a step and forget the tokens that it did not choose."""
        self.launch(step)
        if self._attends_only:
            self._flights.clear()
        else:
            self.sample(step.id)
            self.wait(step.id)
        self.parts.state.last_token.zero_()

    def only_attend(self) -> None:
        """From now on leave out everything but attention, in one layer of each KV group."""
        self._attends_only = True
        self.parts = replace(self.parts, sampler=cast("Sampler", _NobodyChooses()))
        self.pieces = None
        if self.graphs is not None:  # what it recorded did more
            self.graphs = DecodeGraphs(self, self._limits[0], self._limits[2])
        self._model.only_attend(_kinds_of_layers(self, 1))

    def attend(
        self, layer: AttentionLayer, qkv: torch.Tensor, tensors: StepTensors, out: torch.Tensor
    ) -> None:
        """Do as an executor does, and remember what projections look like."""
        self._projections[layer.index] = qkv.shape[1], qkv.dtype
        super().attend(layer, qkv, tensors, out)

    def forward(self, tensors: StepTensors) -> tuple[Handover, dict[int, torch.Tensor]]:
        """Run all layers, or only attention."""
        if not self._attends_only:
            return super().forward(tensors)
        count, device = len(tensors.tokens), self.parts.state.device
        hidden = torch.empty(0, device=device)
        for layer in _kinds_of_attention(self, 1):
            width, dtype = self._projections[layer.index]
            qkv = torch.empty(count, width, dtype=dtype, device=device)
            self.attend(layer, qkv, tensors, qkv.new_empty((count, layer.heads * layer.value_dim)))
            hidden = qkv.new_empty((count, self.parts.model.facts.hidden))
        return Handover(hidden, None), {}

    def shared(self, step: Step) -> list[SharedPrefixes | None]:
        if not self.shares or not step.decode_requests:
            return [None] * len(self._sharing)
        group = np.zeros(step.decode_requests, dtype=np.int32)
        return [
            None if one is None else SharedPrefixes(group, int32([one.page_tokens]))
            for one in self._sharing
        ]


def _kinds_of_layers(executor: TorchExecutor, most: int) -> list[Layer]:
    """Return the first layers of each KV group, in order."""
    kept = {one.index for one in _kinds_of_attention(executor, most)}
    return [one for one in executor.parts.model.layers if one.attention.index in kept]


def _kinds_of_attention(executor: TorchExecutor, most: int) -> list[AttentionLayer]:
    """Return what these attend with."""
    kept = {layer for group in executor.parts.groups for layer in sorted(group.fields)[:most]}
    return [one for one in executor.parts.model.attentions if one.index in kept]


class _FewLayers:
    """A model with some of its layers, and later with nothing but their attention."""

    def __init__(self, model: Model, layers: Sequence[Layer]) -> None:
        self._model = model
        self.layers = layers
        self._attends_only = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        return getattr(self._model, name)

    def only_attend(self, layers: Sequence[Layer]) -> None:
        """Have other layers, and neither norm nor head."""
        self.layers = layers
        self._attends_only = True

    def norm(self, handover: Handover) -> torch.Tensor:
        """See `Model.norm`."""
        return handover.hidden if self._attends_only else self._model.norm(handover)

    def logits(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `Model.logits`."""
        if not self._attends_only:
            return self._model.logits(hidden, step)
        return torch.empty(len(hidden), self._model.facts.vocab, device=hidden.device)


class _NobodyChooses:
    """A sampler for steps that choose no tokens: to admit 1,024 requests to one takes 20 ms."""

    def admit(self, admissions: Admissions) -> None:
        """Learn nothing."""

    def recordable(self, slots: NDArray[np.int32]) -> None:
        """Have the step end with its logits."""


class _Unrecorded:
    """A device on which functions run once, instead of being recorded."""

    def __init__(self, hardware: HardwareBackend) -> None:
        self._hardware = hardware

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the device has
        return getattr(self._hardware, name)

    def capture(self, function: Callable[[], Outputs], lane: int = 0) -> _Once:
        """Run a function."""
        return _Once(function())


_Form = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device]


class _Once:
    """What a function left when it ran."""

    def __init__(self, results: Outputs) -> None:
        self._results = results
        self._forms: list[_Form | None] = []

    def replay(self) -> Outputs:
        """Return the results, or others of their form."""
        if not self._forms:
            return self._results
        return tuple(
            None if form is None else torch.empty_strided(*form[:2], dtype=form[2], device=form[3])
            for form in self._forms
        )

    def begin(self) -> Callable[[], Outputs]:
        """Nothing runs: the results are those of `replay`."""
        return self.replay

    def share(self) -> None:
        """Give back their memory."""
        self._forms = [
            None if one is None else (one.shape, one.stride(), one.dtype, one.device)
            for one in self._results
        ]
        self._results = ()
