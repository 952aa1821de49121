"""No quantisation: weights in the dtype of activations, decoded from whatever the file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.checkpoint.dequantize import DECODED
from camshaft.contracts.quant import Quantizer

from .dense import DenseWeight
from .loading import LoadedLinear

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.checkpoint import CheckpointTensor
    from camshaft.contracts.quant import LinearMethod, LinearSpec, StepContext
    from camshaft.facts import DeviceFacts

    from .components import NoneSettings

_DTYPES = ("bfloat16", "float16", "float32")


class Unquantized(Quantizer):
    """The reference that packed forms are compared with."""

    def __init__(self, settings: NoneSettings) -> None:
        self.settings = settings

    @staticmethod
    def supports(formats: Iterable[str], dtype: str, facts: DeviceFacts) -> list[str]:
        """Refuse formats that nothing decodes."""
        reasons = [
            f"it does not decode tensors of type {name}; convert the model to types that it "
            f"decodes: {', '.join(DECODED)}"
            for name in sorted(set(formats).difference(DECODED))
        ]
        if dtype not in _DTYPES:
            reasons.append(f"it serves {', '.join(_DTYPES)}, not {dtype}")
        return reasons

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """See `Quantizer.linear`."""
        return PlainLinear(spec)


class PlainLinear(LoadedLinear):
    """One matrix for all parts."""

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        self._weight: torch.Tensor | None = torch.empty(
            (sum(spec.parts), spec.inputs), dtype=self.dtype, device=spec.device
        )

    def _take(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        values = tensor.dequantize(self.dtype)
        self._take_random(part, values if rows is None else values[rows])

    def _take_random(self, part: int, weight: torch.Tensor) -> None:
        assert self._weight is not None, "it is finished"
        self._weight[self.span(part)] = weight.to(self.dtype)

    def _pack(self) -> None:
        assert self._weight is not None, "it is finished"
        self._dense = DenseWeight(self._weight, self.bias, self.spec)
        self._weight = None

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `LinearMethod.apply`."""
        return self._dense.apply(x)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """See `LinearMethod.dense`."""
        return self._dense.dense()

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """See `LinearMethod.lookup`."""
        return self._dense.lookup(ids)

    def dequantized(self) -> torch.Tensor:
        """See `LinearMethod.dequantized`."""
        return self._dense.dequantized()

    def resident_bytes(self) -> int:
        """See `LinearMethod.resident_bytes`."""
        return self._dense.resident_bytes()
