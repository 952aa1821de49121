"""The contract of quantizers, as tests to inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from ..contracts.quant import LinearMethod, LinearSpec, Quantizer, StepContext
from ..errors import CheckpointError
from ..facts import DeviceFacts
from ..ops import silu_mul
from .tensors import stored_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.checkpoint import CheckpointTensor

INPUTS = 64
PARTS = (48, 16, 24)
CPU = DeviceFacts("cpu", "toy", 2**30, frozenset({"float32", "bfloat16"}))


class QuantizerContract:
    """Subclass it, define `make`, adjust the attributes, and run pytest.

    Attributes:
        formats: Storage formats that the quantizer takes.
        dtypes: Dtypes of activations that it serves.
        inputs: Weights of a row; whole blocks of every format.
        weight_error: Most that `dequantized` may be off what was loaded, by dtype: the norm of the
            difference over the norm of the weight.
        product_error: Most that `apply` may be off a product with `dequantized`, likewise.
        deterministic: It offers `LinearSpec.deterministic`.
    """

    formats: Sequence[str] = ("f32",)
    dtypes: Sequence[str] = ("float32",)
    inputs = INPUTS
    weight_error: dict[str, float] = {"float32": 1e-6, "bfloat16": 4e-3}  # noqa: RUF012
    product_error: dict[str, float] = {"float32": 1e-5, "bfloat16": 6e-3}  # noqa: RUF012
    deterministic = True

    def make(self) -> Quantizer:
        """Return the quantizer under test."""
        raise NotImplementedError

    def stored(self, name: str, values: torch.Tensor, format: str) -> CheckpointTensor:
        """Return a tensor in one of `formats`; override it for formats of your own."""
        return stored_tensor(name, values, format)

    def cases(self) -> list[tuple[str, str]]:
        """Return every format with every dtype."""
        return [(format, dtype) for format in self.formats for dtype in self.dtypes]

    def tensors(self, format: str, seed: int = 0) -> list[CheckpointTensor]:
        """Return a weight for each of `PARTS`."""
        generator = torch.Generator().manual_seed(seed)
        return [
            self.stored(
                f"part{part}", torch.randn(count, self.inputs, generator=generator) / 8, format
            )
            for part, count in enumerate(PARTS)
        ]

    def loaded(
        self,
        spec: LinearSpec,
        tensors: Sequence[CheckpointTensor],
        bias: torch.Tensor | None = None,
    ) -> LinearMethod:
        """Load and finish a linear."""
        method = self.make().linear(spec)
        start = 0
        for part, tensor in enumerate(tensors):
            method.load(part, tensor)
            if bias is not None:
                piece = bias[start : start + spec.parts[part]]
                method.load_bias(part, stored_tensor(f"bias{part}", piece), None)
            start += spec.parts[part]
        method.finish()
        return method

    def test_the_weight_is_what_was_loaded(self) -> None:
        """Parts lie below each other, in order, within the stated error."""
        for format, dtype in self.cases():
            tensors = self.tensors(format)
            method = self.loaded(self._spec(dtype), tensors)
            exact = torch.cat([tensor.dequantize() for tensor in tensors])
            found = method.dequantized()
            assert found.dtype == torch.float32
            assert _error(found, exact) <= self.weight_error[dtype], (format, dtype)

    @pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 40])
    def test_a_product_is_that_with_the_dequantized_weight(self, rows: int) -> None:
        """For few rows and many, with and without bias, in the activations' dtype."""
        for format, dtype in self.cases():
            x = self._activations(rows, dtype)
            for bias in (None, torch.linspace(-2, 2, sum(PARTS))):
                spec = self._spec(dtype, bias=bias is not None)
                method = self.loaded(spec, self.tensors(format), bias)
                expected = x.float() @ method.dequantized().t()
                expected = expected if bias is None else expected + bias
                found = method.apply(x, StepContext(rows))
                assert found.shape == expected.shape
                assert found.dtype == x.dtype
                assert _error(found, expected) <= self.product_error[dtype], (format, dtype)

    @pytest.mark.parametrize("rows", [1, 40])
    def test_what_follows_a_product_is_done_to_it(self, rows: int) -> None:
        """Whether the linear knows the operation, or calls it."""
        for format, dtype in self.cases():
            x, step = self._activations(rows, dtype), StepContext(rows)
            for bias in (None, torch.linspace(-2, 2, sum(PARTS))):
                spec = self._spec(dtype, bias=bias is not None)
                method = self.loaded(spec, self.tensors(format), bias)
                for then in (silu_mul, torch.neg):
                    found = method.apply_then(x, step, then)
                    assert torch.equal(found, then(method.apply(x, step)))

    def test_parts_of_different_formats_go_together(self) -> None:
        """Files mix formats within a layer."""
        for dtype in self.dtypes:
            mixed = [
                self.tensors(self.formats[part % len(self.formats)])[part]
                for part in range(len(PARTS))
            ]
            method = self.loaded(self._spec(dtype), mixed)
            x = self._activations(3, dtype)
            exact = torch.cat([tensor.dequantize() for tensor in mixed])
            allowed = self.weight_error[dtype] + self.product_error[dtype]
            assert _error(method.apply(x, StepContext(3)), x.float() @ exact.t()) <= allowed

    def test_rows_are_taken_in_the_order_asked_for(self) -> None:
        """Of weights and biases, for the part that asks and no other."""
        for format, dtype in self.cases():
            tensors = self.tensors(format)
            method = self.make().linear(self._spec(dtype, bias=True))
            order = torch.randperm(PARTS[0], generator=torch.Generator().manual_seed(3))
            for part, tensor in enumerate(tensors):
                rows = order if part == 0 else None
                method.load(part, tensor, rows)
                bias = torch.arange(PARTS[part], dtype=torch.float32)
                method.load_bias(part, stored_tensor("bias", bias), rows)
            method.finish()
            exact = [tensor.dequantize() for tensor in tensors]
            exact[0] = exact[0][order]
            assert _error(method.dequantized(), torch.cat(exact)) <= self.weight_error[dtype]
            nothing = torch.zeros(1, self.inputs, dtype=getattr(torch, dtype))
            biases = method.apply(nothing, StepContext(1))[0].tolist()
            assert biases == [*order.tolist(), *range(PARTS[1]), *range(PARTS[2])]

    def test_an_embedding_returns_rows_of_its_weight(self) -> None:
        """In any order, repeated, in the activations' dtype; a tied one multiplies as well."""
        for format, dtype in self.cases():
            tensor = self.tensors(format)[0]
            spec = replace(self._spec(dtype), parts=(PARTS[0],))
            embedding = self.loaded(replace(spec, role="embedding"), [tensor])
            tied = self.loaded(replace(spec, role="tied"), [tensor])
            exact = tensor.dequantize()[[5, 0, 47, 5]]
            for method in (embedding, tied):
                found = method.lookup(torch.tensor([5, 0, 47, 5]))
                assert found.dtype == getattr(torch, dtype)
                assert _error(found, exact) <= self.weight_error[dtype], (format, dtype)
            x = self._activations(4, dtype)
            expected = x.float() @ tied.dequantized().t()
            found = tied.apply(x, StepContext(4))
            assert _error(found, expected) <= self.product_error[dtype], (format, dtype)

    def test_loading_leaves_nothing_behind_in_the_file(self) -> None:
        """What is loaded is copied: the file may change or go away after `finish`."""
        for format, dtype in self.cases():
            tensors = self.tensors(format)
            method = self.loaded(self._spec(dtype), tensors)
            before = method.dequantized().clone()
            for tensor in tensors:
                tensor.data[:] = 17
            assert torch.equal(method.dequantized(), before), (format, dtype)

    def test_activations_are_only_read(self) -> None:
        """The model still needs them."""
        for format, dtype in self.cases():
            method = self.loaded(self._spec(dtype), self.tensors(format))
            for rows in (1, 40):
                x = self._activations(rows, dtype)
                before = x.clone()
                method.apply(x, StepContext(rows))
                assert torch.equal(x, before), (format, dtype)

    def test_a_product_repeats_to_the_bit(self) -> None:
        """Nothing is left over from the call before."""
        for format, dtype in self.cases():
            method = self.loaded(self._spec(dtype), self.tensors(format))
            x = self._activations(5, dtype)
            first = method.apply(x, StepContext(5)).clone()
            method.apply(self._activations(40, dtype), StepContext(40))
            assert torch.equal(method.apply(x, StepContext(5)), first), (format, dtype)

    def test_deterministic_rows_do_not_depend_on_each_other(self) -> None:
        """To the bit: alone, at any place, among any number of rows."""
        if not self.deterministic:
            pytest.skip("it does not offer deterministic linears")
        for format, dtype in self.cases():
            spec = replace(self._spec(dtype, bias=True), deterministic=True)
            method = self.loaded(spec, self.tensors(format), torch.ones(sum(PARTS)))
            x = self._activations(21, dtype)
            together = method.apply(x, StepContext(21))
            for row in range(21):
                alone = method.apply(x[row : row + 1], StepContext(1))
                assert torch.equal(alone[0], together[row]), (format, dtype, row)
            assert torch.equal(method.apply(x[3:14], StepContext(11)), together[3:14])

    def test_a_missing_part_is_an_error_that_names_the_linear(self) -> None:
        """Never weights that are whatever memory held."""
        for dtype in self.dtypes:
            tensors = self.tensors(self.formats[0])
            method = self.make().linear(self._spec(dtype))
            method.load(0, tensors[0])
            method.load(2, tensors[2])
            with pytest.raises(CheckpointError, match=r"layers\.3\.qkv"):
                method.finish()

    def test_a_missing_bias_is_an_error(self) -> None:
        """The same for biases."""
        method = self.make().linear(self._spec(self.dtypes[0], bias=True))
        for part, tensor in enumerate(self.tensors(self.formats[0])):
            method.load(part, tensor)
        with pytest.raises(CheckpointError, match=r"layers\.3\.qkv"):
            method.finish()

    def test_a_misshapen_tensor_is_an_error_that_names_it(self) -> None:
        """Transposed, too short or too wide."""
        for shape in (
            (self.inputs, PARTS[0]),
            (PARTS[0] - 16, self.inputs),
            (PARTS[0], 2 * self.inputs),
        ):
            method = self.make().linear(self._spec(self.dtypes[0]))
            with pytest.raises(CheckpointError, match="odd_one"):
                method.load(0, self.stored("odd_one", torch.ones(shape), self.formats[0]))

    def test_random_weights_follow_the_seed_and_the_spread(self) -> None:
        """So that a model without a checkpoint is the same in every process."""
        for dtype in self.dtypes:
            weights = []
            for seed in (1, 1, 2):
                method = self.make().linear(self._spec(dtype, bias=True))
                method.randomize(torch.Generator().manual_seed(seed), 0.125)
                method.finish()
                weights.append(method.dequantized())
            assert torch.equal(weights[0], weights[1])
            assert not torch.equal(weights[0], weights[2])
            assert weights[0].std().item() == pytest.approx(0.125, rel=0.1)
            assert abs(weights[0].mean().item()) < 0.02

    def test_resident_bytes_do_not_shrink_what_is_there(self) -> None:
        """At least two bits a weight, twice as much for twice the rows, and the same later."""
        for format, dtype in self.cases():
            method = self.loaded(self._spec(dtype), self.tensors(format))
            before = method.resident_bytes()
            assert before >= sum(PARTS) * self.inputs // 4
            method.apply(self._activations(9, dtype), StepContext(9))
            assert method.resident_bytes() == before
            spec = replace(self._spec(dtype), parts=PARTS * 4)
            larger = self.loaded(spec, self.tensors(format) * 4)
            assert larger.resident_bytes() > 2 * before

    def test_what_it_takes_is_supported_and_the_rest_is_refused_by_name(self) -> None:
        """`supports` is what stands between a recipe and wrong results."""
        quantizer = self.make()
        for dtype in self.dtypes:
            assert quantizer.supports(self.formats, dtype, CPU) == []
        reasons = quantizer.supports([*self.formats, "iq7_zz"], self.dtypes[0], CPU)
        assert any("iq7_zz" in reason for reason in reasons)
        assert any("int13" in reason for reason in quantizer.supports(self.formats, "int13", CPU))

    def _spec(self, dtype: str, *, bias: bool = False) -> LinearSpec:
        return LinearSpec("layers.3.qkv", self.inputs, PARTS, bias=bias, dtype=dtype)

    def _activations(self, rows: int, dtype: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rows)
        return torch.randn(rows, self.inputs, generator=generator).to(getattr(torch, dtype))


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = found.float() - expected.float()
    return float(difference.norm()) / float(expected.float().norm())
