"""The simplest quantizer that keeps its contract, for tests of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..contracts.quant import LinearMethod, LinearSpec, Quantizer, StepContext
from ..errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.checkpoint import CheckpointTensor

    from ..facts import DeviceFacts

_FORMATS = ("f32", "f16", "bf16", "q4_0", "q4_1", "q8_0")
_DTYPES = ("float32", "bfloat16")


class RowByRow(Quantizer):
    """Keeps weights in float32 and multiplies one row at a time: slow, and batch-invariant."""

    @staticmethod
    def supports(formats: Iterable[str], dtype: str, facts: DeviceFacts) -> list[str]:
        """Refuse what `RowByRowLinear` does not read."""
        reasons = [f"it does not read {name}" for name in formats if name not in _FORMATS]
        return reasons + ([] if dtype in _DTYPES else [f"it does not compute in {dtype}"])

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return an empty linear."""
        return RowByRowLinear(spec)


class RowByRowLinear(LinearMethod):
    """A list of parts until `finish`, then one matrix."""

    def __init__(self, spec: LinearSpec) -> None:
        self.spec = spec
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self.weights: dict[int, torch.Tensor] = {}
        self.biases: dict[int, torch.Tensor] = {}

    def load(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> None:
        """Copy a part in float32."""
        self._check(tensor, (self.spec.parts[part], self.spec.inputs))
        self.weights[part] = _ordered(tensor, rows)

    def load_bias(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        """Copy a bias in float32."""
        self._check(tensor, (self.spec.parts[part],))
        self.biases[part] = _ordered(tensor, rows)

    def _check(self, tensor: CheckpointTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.file}: tensor '{tensor.name}' is {list(tensor.shape)}; "
                f"{self.spec.name} takes {list(shape)}."
            )

    def randomize(self, generator: torch.Generator, std: float) -> None:
        """Draw weights, then biases."""
        for part, count in enumerate(self.spec.parts):
            weight = torch.empty(count, self.spec.inputs)
            self.weights[part] = weight.normal_(0, std, generator=generator)
        for part, count in enumerate(self.spec.parts if self.spec.bias else ()):
            self.biases[part] = torch.empty(count).normal_(0, std, generator=generator)

    def finish(self) -> None:
        """Join the parts."""
        wanted = range(len(self.spec.parts))
        if any(part not in self.weights for part in wanted):
            raise CheckpointError(f"{self.spec.name}: a part was never loaded.")
        if self.spec.bias and any(part not in self.biases for part in wanted):
            raise CheckpointError(f"{self.spec.name}: a bias was never loaded.")
        self.weight = torch.cat([self.weights[part] for part in wanted])
        self.bias = torch.cat([self.biases[part] for part in wanted]) if self.spec.bias else None

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Multiply row by row, in float32."""
        rows = [torch.nn.functional.linear(row[None], self.weight, self.bias) for row in x.float()]
        return torch.cat(rows).to(x.dtype)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight."""
        return self.weight[ids].to(self.dtype)

    def dequantized(self) -> torch.Tensor:
        """Return the weight."""
        return self.weight

    def resident_bytes(self) -> int:
        """Return the bytes of weight and bias."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def _ordered(tensor: CheckpointTensor, rows: torch.Tensor | None) -> torch.Tensor:
    values = tensor.dequantize()
    return values.clone() if rows is None else values[rows]
