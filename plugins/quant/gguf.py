"""Weights of GGUF files, served packed on a CPU.

In bfloat16 the compiled operations multiply all packed formats as they are, with activations of 8
bits, for any number of rows. Where there are none torch computes 4-bit blocks (Q4_0, Q4_1, Q4_K)
from their packed form while a step has few rows, when reading weights is what takes the time. For
more rows a bfloat16 copy is faster, and by setting it is kept beside them. Other blocks become
bfloat16 then: torch's 8-bit kernel knows one scale a row, and rounding the file's scales to that
costs 1.2 % of SmolLM2's embedding where bfloat16 costs 0.14 %. In float32 weights are decoded in
every call. Embeddings stay packed; only looked-up rows are decoded.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from camshaft.checkpoint.dequantize import DECODED
from camshaft.contracts.quant import Quantizer
from camshaft.errors import PluginError
from camshaft.native import reasons
from camshaft.native.rows import GATES

from .crossover import rows_for_bfloat16
from .decoded import DecodedWeight, decoded
from .dense import DenseWeight
from .int4 import Int4Weight
from .loading import LoadedLinear
from .native import NativeWeight
from .packed import BLOCK, FOUR_BIT, PackedRows, quantize_q4_0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        against = [
            f"it does not serve tensors of type {name}; convert the model to types that it "
            f"serves: {', '.join((*_PACKED, *_PLAIN))}"
            for name in sorted(found.difference(_PACKED, _PLAIN))
        ]
        if found and not found.difference(_PLAIN):
            against.append(f"no tensor is packed, only {', '.join(sorted(found))}; use 'none'")
        if dtype not in _DTYPES:
            against.append(f"it serves {' and '.join(_DTYPES)}, not {dtype}")
        if facts.kind != "cpu":
            against.append(f"it runs on cpu, not on {facts.kind}")
        return against

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """See `Quantizer.linear`."""
        return GgufLinear(spec, self.settings)


Segment = NativeWeight | Int4Weight | DenseWeight | DecodedWeight


class GgufLinear(LoadedLinear):
    """Parts side by side. Neighbours of the same form are one matrix product."""

    def __init__(self, spec: LinearSpec, settings: GgufSettings) -> None:
        super().__init__(spec)
        self.settings = settings
        self._is_native = self.dtype == torch.bfloat16 and uses_native(settings)
        self._loaded: dict[int, PackedRows] = {}
        self._rows: list[PackedRows] = []
        self._segments: list[Segment] = []
        self._copy: DenseWeight | None = None
        self._row_limit = 0

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
        if self.spec.role == "embedding":
            self._rows = pieces
            return
        for kind, group in groupby(pieces, self._kind):
            self._segments.append(self._segment(kind, list(group)))
        is_packed = [isinstance(one, NativeWeight | Int4Weight) for one in self._segments]
        if self.spec.role == "tied" and not isinstance(self._segments[0], NativeWeight):
            self._rows = pieces
        # Rows of a copy depend on the batch; those of packed kernels do not.
        if any(is_packed) and not self.spec.deterministic:
            self._row_limit = self._most_packed_rows()
            if self._row_limit:
                self._copy = self._dense(pieces, self.bias)

    def _kind(self, piece: PackedRows) -> type[Segment]:
        """Return how a part is multiplied."""
        if self.dtype == torch.float32:
            return DecodedWeight
        if self._is_native and piece.format not in _PLAIN:
            return NativeWeight
        return Int4Weight if piece.format in FOUR_BIT and not self._is_native else DenseWeight

    def _segment(self, kind: type[Segment], pieces: list[PackedRows]) -> Segment:
        if kind is DecodedWeight:
            return DecodedWeight(pieces, self.spec.deterministic)
        if kind is DenseWeight:
            return self._dense(pieces, None)
        if kind is Int4Weight:
            return Int4Weight(pieces)
        return NativeWeight(
            pieces, 0 if self.spec.deterministic else self.settings.per_channel_rows
        )

    def _most_packed_rows(self) -> int:
        """Return up to how many rows packed weights are used beside a copy, 0 to keep none."""
        keep, rows = self.settings.keep_bf16, self.settings.packed_rows
        measured = rows_for_bfloat16() if self._is_native else 4
        if keep is False or (keep == "auto" and measured is None):
            return 0
        return rows if rows != "auto" else measured or 4

    def _dense(self, pieces: Sequence[PackedRows], bias: torch.Tensor | None) -> DenseWeight:
        applied_only = replace(self.spec, role="head")
        return DenseWeight(decoded(pieces, self.dtype), bias, applied_only)

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `LinearMethod.apply`."""
        return self._apply(x, x.dtype)

    def apply_wide(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `LinearMethod.apply_wide`."""
        return self._apply(x, torch.float32)

    def apply_then(
        self, x: torch.Tensor, step: StepContext, then: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """See `LinearMethod.apply_then`. Gates of the same library are applied with the product."""
        gate, whole = GATES.get(then), self._segments[0]
        if gate is None or not isinstance(whole, NativeWeight) or not whole.gates():
            return then(self.apply(x, step))
        if len(self._segments) > 1 or self.bias is not None or self._copy_for(len(x)) is not None:
            return then(self.apply(x, step))
        return whole.apply_gated(x, gate)

    def _copy_for(self, rows: int) -> DenseWeight | None:
        """Return the copy, if so many rows are multiplied with it."""
        return self._copy if rows > self._row_limit else None

    def _apply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        copy = self._copy_for(len(x))
        if copy is not None:
            return copy.apply(x).to(dtype)
        products = [
            one.apply(x, dtype) if isinstance(one, NativeWeight) else one.apply(x).to(dtype)
            for one in self._segments
        ]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        return product if self.bias is None else product.add_(self.bias)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """See `LinearMethod.lookup`. Decodes only these rows."""
        if not self._rows:
            (weight,) = self._segments
            assert isinstance(weight, NativeWeight), "this linear is no embedding"
            return weight.lookup(ids, self.dtype)
        assert len(self._rows) == 1, "an embedding has one part"
        return self._rows[0].dequantize(self.dtype, ids)

    def dequantized(self) -> torch.Tensor:
        """See `LinearMethod.dequantized`. As few rows see it."""
        if self.spec.role == "embedding":
            return decoded(self._rows, torch.float32)
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


def uses_native(settings: GgufSettings) -> bool:
    """Return whether bfloat16 linears are multiplied by the compiled operations.

    Raises:
        PluginError: They are asked for and there are none here.
    """
    if settings.kernels == "native" and reasons():
        raise PluginError(f"quant.kernels is 'native': {'; '.join(reasons())}.")
    return settings.kernels != "torch" and not reasons()
