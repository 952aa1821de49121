"""Weights of GGUF files, served packed on a CPU.

4-bit blocks (Q4_0, Q4_1, Q4_K) are computed from their packed form while a step has few rows, when
reading weights is what takes the time. For more rows a bfloat16 copy is faster, and by setting it
is kept beside them. 8-bit blocks (Q8_0) become bfloat16: torch's 8-bit kernel knows one scale a
row, and rounding the file's scales to that costs 1.2 % of SmolLM2's embedding where bfloat16 costs
0.14 %. So do blocks of 2, 3, 5 and 6 bits, for which torch has no kernel. Embeddings stay as they
are in the file; only looked-up rows are decoded.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from camshaft.checkpoint.dequantize import DECODED
from camshaft.contracts.quant import Quantizer
from camshaft.errors import PluginError
from camshaft.ops import linear, row_linear

from .dense import DenseWeight
from .int4 import Int4Weight
from .loading import LoadedLinear
from .packed import BLOCK, FOUR_BIT, PackedRows, quantize_q4_0

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from camshaft.checkpoint import CheckpointTensor
    from camshaft.contracts.quant import LinearMethod, LinearSpec, StepContext
    from camshaft.facts import DeviceFacts

    from .components import GgufSettings

_PLAIN = ("bf16", "f16", "f32")
_PACKED = tuple(name for name in DECODED if name not in (*_PLAIN, "f64"))
_DTYPES = ("bfloat16", "float32")


class Gguf(Quantizer):
    """Serves bfloat16 fast. float32 is right too, and slow: weights are decoded in every call."""

    def __init__(self, settings: GgufSettings) -> None:
        self.settings = settings

    @staticmethod
    def supports(formats: Iterable[str], dtype: str, facts: DeviceFacts) -> list[str]:
        """Refuse other formats by name, other devices, and files in which nothing is packed."""
        found = set(formats)
        reasons = [
            f"it does not serve tensors of type {name}; convert the model to types that it "
            f"serves: {', '.join((*_PACKED, *_PLAIN))}"
            for name in sorted(found.difference(_PACKED, _PLAIN))
        ]
        if found and not found.difference(_PLAIN):
            reasons.append(f"no tensor is packed, only {', '.join(sorted(found))}; use 'none'")
        if dtype not in _DTYPES:
            reasons.append(f"it serves {' and '.join(_DTYPES)}, not {dtype}")
        if facts.kind != "cpu":
            reasons.append(f"it runs on cpu, not on {facts.kind}")
        return reasons

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """See `Quantizer.linear`."""
        return GgufLinear(spec, self.settings)


class GgufLinear(LoadedLinear):
    """Parts side by side. Neighbours of the same form are one matrix product."""

    def __init__(self, spec: LinearSpec, settings: GgufSettings) -> None:
        super().__init__(spec)
        self.settings = settings
        self._loaded: dict[int, PackedRows] = {}
        self._rows: list[PackedRows] = []
        self._segments: list[Int4Weight | DenseWeight | DecodedWeight] = []
        self._copy: DenseWeight | None = None
        self._row_limit = settings.packed_rows

    def _take(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        self._loaded[part] = PackedRows.copy_of(tensor, rows)

    def _take_random(self, part: int, weight: torch.Tensor) -> None:
        if self.spec.inputs % BLOCK:
            raise PluginError(
                f"{self.spec.name}: rows of {self.spec.inputs} weights are no whole blocks of "
                f"{BLOCK}; random weights of this size need the quantizer 'none'."
            )
        self._loaded[part] = quantize_q4_0(weight)

    def _pack(self) -> None:
        pieces = [self._loaded.pop(part) for part in sorted(self._loaded)]
        if self.spec.role in ("embedding", "tied"):
            self._rows = pieces
        if self.spec.role == "embedding":
            return
        is_exact = self.dtype == torch.float32
        for is_four_bit, group in groupby(pieces, lambda piece: piece.format in FOUR_BIT):
            segment = list(group)
            if is_exact:
                self._segments.append(DecodedWeight(segment, self.spec.deterministic))
            elif is_four_bit:
                self._segments.append(Int4Weight(segment))
            else:
                self._segments.append(self._dense(segment, None))
        has_packed = any(isinstance(segment, Int4Weight) for segment in self._segments)
        # Rows of a copy depend on the batch; the packed kernel's do not.
        if has_packed and self.settings.keep_bf16 and not self.spec.deterministic:
            self._copy = self._dense(pieces, self.bias)

    def _dense(self, pieces: Sequence[PackedRows], bias: torch.Tensor | None) -> DenseWeight:
        applied_only = replace(self.spec, role="head")
        return DenseWeight(_decoded(pieces, self.dtype), bias, applied_only)

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `LinearMethod.apply`."""
        if self._copy is not None and len(x) > self._row_limit:
            return self._copy.apply(x)
        products = [segment.apply(x) for segment in self._segments]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        return product if self.bias is None else product.add_(self.bias)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """See `LinearMethod.lookup`. Decodes only these rows."""
        assert len(self._rows) == 1, "an embedding has one part"
        return self._rows[0].dequantize(self.dtype, ids)

    def dequantized(self) -> torch.Tensor:
        """See `LinearMethod.dequantized`. As few rows see it."""
        if self.spec.role == "embedding":
            return _decoded(self._rows, torch.float32)
        return torch.cat([segment.dequantized() for segment in self._segments])

    def resident_bytes(self) -> int:
        """See `LinearMethod.resident_bytes`. Every form that is kept counts."""
        total = sum(segment.resident_bytes() for segment in self._segments)
        if self._copy is not None:
            total += self._copy.resident_bytes()
        elif self.bias is not None:
            total += self.bias.nbytes
        if not any(isinstance(segment, DecodedWeight) for segment in self._segments):
            total += sum(rows.data.nbytes for rows in self._rows)  # else they are those rows
        return total


class DecodedWeight:
    """Packed rows that are decoded to float32 whenever they are applied."""

    def __init__(self, pieces: Sequence[PackedRows], deterministic: bool) -> None:
        self._pieces = pieces
        self._deterministic = deterministic

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, K] times the transposed weight: [T, N]."""
        multiply = row_linear if self._deterministic else linear
        return multiply(x, self.dequantized(), None)

    def dequantized(self) -> torch.Tensor:
        """Return the weight in float32."""
        return _decoded(self._pieces, torch.float32)

    def resident_bytes(self) -> int:
        """Return the bytes of the packed rows."""
        return sum(piece.data.nbytes for piece in self._pieces)


def _decoded(pieces: Sequence[PackedRows], dtype: torch.dtype) -> torch.Tensor:
    values = [piece.dequantize(dtype) for piece in pieces]
    return values[0] if len(values) == 1 else torch.cat(values)
