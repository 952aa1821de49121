"""What the linears of this folder share: their parts, biases and the checks on both."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from camshaft.contracts.quant import LinearMethod
from camshaft.errors import CheckpointError

if TYPE_CHECKING:
    from camshaft.checkpoint import CheckpointTensor
    from camshaft.contracts.quant import LinearSpec


class LoadedLinear(LinearMethod):
    """A linear that is filled part by part.

    Subclasses say how a part's weight is taken and how everything is packed in the end.

    Attributes:
        spec: What it is.
        dtype: Of activations.
        bias: [N] of all parts, or None.
    """

    def __init__(self, spec: LinearSpec) -> None:
        self.spec = spec
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.bias: torch.Tensor | None = None
        parts = range(len(spec.parts))
        self._missing = {("weight", part) for part in parts}
        if spec.bias:
            self._missing |= {("bias", part) for part in parts}
            self.bias = torch.empty(sum(spec.parts), dtype=self.dtype, device=spec.device)

    def span(self, part: int) -> slice:
        """Return the output rows of a part."""
        start = sum(self.spec.parts[:part])
        return slice(start, start + self.spec.parts[part])

    def load(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> None:
        """See `LinearMethod.load`."""
        self._check(tensor, (self.spec.parts[part], self.spec.inputs))
        self._take(part, tensor, rows)
        self._missing.discard(("weight", part))

    def load_bias(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        """See `LinearMethod.load_bias`."""
        if self.bias is None:
            raise CheckpointError(
                f"{tensor.file}: tensor '{tensor.name}' is a bias, but {self.spec.name} has none."
            )
        self._check(tensor, (self.spec.parts[part],))
        values = tensor.dequantize(self.dtype)
        self.bias[self.span(part)] = values if rows is None else values[rows]
        self._missing.discard(("bias", part))

    def randomize(self, generator: torch.Generator, std: float) -> None:
        """See `LinearMethod.randomize`. Biases are drawn after the weights of all parts."""
        for part, count in enumerate(self.spec.parts):
            weight = torch.empty(count, self.spec.inputs, device=generator.device)
            self._take_random(part, weight.normal_(0, std, generator=generator))
        if self.bias is not None:
            drawn = torch.empty(len(self.bias), device=generator.device)
            self.bias.copy_(drawn.normal_(0, std, generator=generator))
        self._missing.clear()

    def finish(self) -> None:
        """See `LinearMethod.finish`."""
        if self._missing:
            what = ", ".join(f"the {kind} of part {part}" for kind, part in sorted(self._missing))
            raise CheckpointError(f"{self.spec.name}: {what} was never loaded.")
        self._pack()

    def _check(self, tensor: CheckpointTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.file}: tensor '{tensor.name}' is {list(tensor.shape)}; "
                f"{self.spec.name} takes {list(shape)}."
            )

    @abstractmethod
    def _take(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        """Copy the weight of a part, in the order of `rows`."""

    @abstractmethod
    def _take_random(self, part: int, weight: torch.Tensor) -> None:
        """Take a float32 weight [rows of the part, K] instead."""

    @abstractmethod
    def _pack(self) -> None:
        """Build the resident form; every part is there."""
