"""The contract of quantizers accepts a right one and rejects each of these wrong ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from camshaft.checkpoint import CheckpointTensor
from camshaft.contracts.quant import LinearMethod, LinearSpec, Quantizer, StepContext
from camshaft.facts import DeviceFacts
from camshaft.testing.quant import QuantizerContract
from camshaft.testing.quantizer import RowByRow, RowByRowLinear
from camshaft.testing.rejects import failures


class Batched(RowByRowLinear):
    """A product of all rows at once, whose bits depend on their number."""

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        return torch.nn.functional.linear(x.float(), self.weight, self.bias).to(x.dtype)


class BiasEverywhere(RowByRowLinear):
    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        product = super().apply(x, step)
        return product if self.bias is None else (product + self.bias).to(x.dtype)


class IgnoresOrder(RowByRowLinear):
    def load(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> None:
        super().load(part, tensor, None)


class HoldsTheFile(RowByRowLinear):
    def load(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> None:
        super().load(part, tensor, rows)
        self.held = getattr(self, "held", {})
        self.held[part] = tensor

    def dequantized(self) -> torch.Tensor:
        if not hasattr(self, "held") or len(self.held) < len(self.spec.parts):
            return super().dequantized()
        return torch.cat([self.held[part].dequantize() for part in range(len(self.spec.parts))])


class PartsReversed(RowByRowLinear):
    def finish(self) -> None:
        super().finish()
        self.weight = torch.cat([self.weights[part] for part in sorted(self.weights, reverse=True)])


class MissingIsZero(RowByRowLinear):
    def finish(self) -> None:
        for part, count in enumerate(self.spec.parts):
            self.weights.setdefault(part, torch.zeros(count, self.spec.inputs))
            self.biases.setdefault(part, torch.zeros(count))
        super().finish()


class AnyShape(RowByRowLinear):
    def _check(self, tensor: CheckpointTensor, shape: tuple[int, ...]) -> None:
        pass


class LooksUpTheNext(RowByRowLinear):
    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        return super().lookup((ids + 1) % len(self.weight))


class Overwrites(RowByRowLinear):
    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        product = super().apply(x, step)
        x.zero_()
        return product


class AlwaysFloat32(RowByRowLinear):
    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        return super().apply(x, step).float()


class Unseeded(RowByRowLinear):
    def randomize(self, generator: torch.Generator, std: float) -> None:
        super().randomize(torch.Generator(), std)


class Remembers(RowByRowLinear):
    """Adds what is left of the last call."""

    last = 0.0

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        product = super().apply(x, step) + self.last
        self.last = self.last + 1e-3
        return product.to(x.dtype)


class Weightless(RowByRowLinear):
    def resident_bytes(self) -> int:
        return 1


def contract_of(linear_class: type[LinearMethod]) -> type[QuantizerContract]:
    class Toy(RowByRow):
        def linear(self, spec: LinearSpec) -> LinearMethod:
            return linear_class(spec)  # type: ignore[call-arg]

    class Contract(QuantizerContract):
        formats = ("f32", "q4_1")
        dtypes = ("float32", "bfloat16")

        def make(self) -> Quantizer:
            return Toy()

    return Contract


def test_a_right_quantizer_passes() -> None:
    assert failures(contract_of(RowByRowLinear)) == []


@pytest.mark.parametrize(
    ("wrong", "found_by"),
    [
        (Batched, "test_deterministic_rows_do_not_depend_on_each_other"),
        (BiasEverywhere, "test_a_product_is_that_with_the_dequantized_weight"),
        (IgnoresOrder, "test_rows_are_taken_in_the_order_asked_for"),
        (HoldsTheFile, "test_loading_leaves_nothing_behind_in_the_file"),
        (PartsReversed, "test_the_weight_is_what_was_loaded"),
        (MissingIsZero, "test_a_missing_part_is_an_error_that_names_the_linear"),
        (AnyShape, "test_a_misshapen_tensor_is_an_error_that_names_it"),
        (LooksUpTheNext, "test_an_embedding_returns_rows_of_its_weight"),
        (Overwrites, "test_activations_are_only_read"),
        (AlwaysFloat32, "test_a_product_is_that_with_the_dequantized_weight"),
        (Unseeded, "test_random_weights_follow_the_seed_and_the_spread"),
        (Remembers, "test_a_product_repeats_to_the_bit"),
        (Weightless, "test_resident_bytes_do_not_shrink_what_is_there"),
    ],
)
def test_a_wrong_quantizer_is_rejected(wrong: type[LinearMethod], found_by: str) -> None:
    assert found_by in failures(contract_of(wrong), only=[found_by])


def test_a_quantizer_that_supports_everything_is_rejected() -> None:
    class Boastful(RowByRow):
        @staticmethod
        def supports(formats: Iterable[str], dtype: str, facts: DeviceFacts) -> list[str]:
            return []

    class Contract(QuantizerContract):
        def make(self) -> Quantizer:
            return Boastful()

    assert failures(Contract) == ["test_what_it_takes_is_supported_and_the_rest_is_refused_by_name"]
