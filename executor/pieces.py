"""Steps with prompts as recorded pieces: what lies between two attentions, for padded sizes.

Attention depends on who is in the step and runs as it is; everything else sees rows only. Launched
one kernel at a time, the 28 layers of a 0.6B model cost the host 24 ms, more than a device needs to
compute 8,192 tokens; as pieces they cost it 5.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.model import Handover, WholeModel
from camshaft.contracts.quant import StepContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from camshaft.contracts.hardware import Outputs, Recording
    from camshaft.contracts.model import Layer

    from .metadata import StepTensors
    from .torch_executor import TorchExecutor


def token_sizes(most: int) -> list[int]:
    """Return the numbers of tokens that pieces are recorded for, ascending up to `most`.

    Eight from each power of two to the next, so that at most an eighth of the rows is padding. And
    chunks of long prompts end at multiples of 1,024: what decodes beside them needs little more.
    """
    sizes = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}
    power = 64
    while power < most:
        sizes |= {power + part * power // 8 for part in range(1, 9)}
        power *= 2
    sizes |= {chunks + few for chunks in range(4096, most, 1024) for few in (128, 256)}
    return sorted({min(size, most) for size in sizes})


class LayerGraphs:
    """Records the pieces of a size when it first occurs, and replays them after that."""

    def __init__(self, executor: TorchExecutor, most_tokens: int, lane: int = 0) -> None:
        """Record nothing yet.

        Args:
            executor: Whose model and memory the pieces run on.
            most_tokens: Of a step.
            lane: See `HardwareBackend.capture`.
        """
        self.executor = executor
        self.lane = lane
        self.sizes = token_sizes(most_tokens)
        self.replays = 0
        device = executor.parts.state.device
        self._tokens = torch.zeros(most_tokens, dtype=torch.int64, device=device)
        self._attended: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._recorded: dict[int, _Chain] = {}

    def by_layer(self, tensors: StepTensors) -> Iterator[Handover | None]:
        """Run all layers, one at a time; the last one with what follows.

        Args:
            tensors: Of a step of at most `most_tokens` tokens.

        Yields:
            Behind the last layer its hand-over, at least [T, C]; rows beyond T are void. Good until
            the next run.
        """
        count = len(tensors.tokens)
        size = self.sizes[int(np.searchsorted(self.sizes, count))]
        chain = self._recorded.get(size)
        if chain is None:
            chain = self._recorded[size] = _Chain(self, size)
        self._tokens[:count] = tensors.tokens
        for index, layer in enumerate(self.executor.parts.model.layers):
            if index:
                yield None
            qkv = chain.replay(index)[0]
            assert qkv is not None
            out = self.attended(layer, qkv.dtype)
            self.executor.attend(layer.attention, qkv[:count], tensors, out[:count])
        self.replays += 1
        hidden, residual = chain.replay(-1)
        assert hidden is not None
        yield Handover(hidden, residual)

    @staticmethod
    def allowed(executor: TorchExecutor) -> bool:
        """Return whether every part can be recorded."""
        parts = executor.parts
        is_cut = not isinstance(parts.model, WholeModel)
        return parts.speculator is None and is_cut and parts.model.recordable

    def tokens(self, size: int) -> torch.Tensor:
        """Return where the ids of a step of `size` tokens stand."""
        return self._tokens[:size]

    def attended(self, layer: Layer, dtype: torch.dtype) -> torch.Tensor:
        """Return where attention leaves its results: [most tokens, H * Dv], for all layers."""
        width = layer.attention.heads * layer.attention.value_dim
        if (width, dtype) not in self._attended:
            shape = (self.sizes[-1], width)
            buffer = torch.zeros(shape, dtype=dtype, device=self._tokens.device)
            self._attended[width, dtype] = buffer
        return self._attended[width, dtype]


class _Chain:
    """The pieces of one size, each recorded on the results of the one before it."""

    def __init__(self, graphs: LayerGraphs, size: int) -> None:
        self._graphs = graphs
        self._size = size
        self._context = StepContext(tokens=size, capture=True)
        parts = graphs.executor.parts
        count = len(parts.model.layers)
        self._layers = parts.model.layers
        self._results: list[Outputs] = [()] * (count + 1)
        self._pieces: list[Recording] = []
        for index in range(count + 1):
            # not replayed for its results: where they stand is known, and of a long step each
            # replay takes as long as the step
            recording = parts.hardware.capture(partial(self._piece, index), graphs.lane)
            self._pieces.append(recording)
            if index:  # nothing reads the results before these any more
                self._pieces[index - 1].share()
                self._results[index - 1] = ()
        self._pieces[count].share()

    def replay(self, index: int) -> Outputs:
        """Run one piece and return (qkv, carried hidden, carried residual); the last two at -1."""
        results = self._results[index] = self._pieces[index].replay()
        return results

    def _piece(self, index: int) -> Outputs:
        """Run a piece; what it returned last is read by the next one."""
        results = self._results[index] = self._run(index)
        return results

    def _run(self, index: int) -> Outputs:
        """Finish the layer before `index` and begin the one there; the ends lack one of these."""
        model = self._graphs.executor.parts.model
        if index == 0:
            handover = model.embed(self._graphs.tokens(self._size), self._context)
        else:
            layer, (qkv, hidden, residual) = self._layers[index - 1], self._results[index - 1]
            assert qkv is not None
            assert hidden is not None
            attended = self._graphs.attended(layer, qkv.dtype)[: self._size]
            handover = layer.after(attended, Handover(hidden, residual), self._context)
        if index == len(self._layers):
            return tuple(handover)
        qkv, carried = self._layers[index].before(handover, self._context)
        return (qkv, *carried)
