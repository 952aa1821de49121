"""The contract of providers of operations, as tests to inherit. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ..contracts.attention import AttentionLayer, Rope
from ..contracts.ops import OpImplementation, OpsProvider
from ..facts import DeviceFacts
from ..ops import OpsTable, compose_ops

if TYPE_CHECKING:
    from collections.abc import Callable

Arguments = tuple[Any, ...]

CPU = DeviceFacts("cpu", "test", 2**30, frozenset({"float32", "bfloat16"}))
WIDTHS = [64, 576]
"""Of rows; one of them is no power of two."""
LINEARS = [(64, 96), (576, 40)]
"""Inputs and outputs; some of them are multiples of no power of two above 8."""
_LINEAR = ("linear", "row_linear", "norm_linear", "norm_gated_linear")
_DEPENDING = ("linear", "norm_linear", "norm_gated_linear")
_ADDING = ("add_rms_norm", "norm_linear", "norm_gated_linear")


class OpsProviderContract:
    """Subclass it, define `make`, and run pytest on a machine that has the device.

    An operation that a provider does not support with these facts and dtypes is left out; one that
    is supported must equal the reference in `camshaft.ops`.

    Attributes:
        facts: Of the device that the tests run on.
        device: Torch's name of it.
        dtypes: Activations to test with.
        tolerance: By dtype: largest difference to the reference, relative to the largest value of
            the row or to 1.
    """

    facts: DeviceFacts = CPU
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    tolerance: dict[str, float] = {"float32": 1e-5, "bfloat16": 2e-2}  # noqa: RUF012 - read only

    def make(self) -> OpsProvider:
        """Return the provider under test."""
        raise NotImplementedError

    def supported(self, dtype: str) -> list[OpImplementation]:
        """Return what is offered for `dtype` on this device."""
        return [one for one in self.make().implementations() if not one.supports(self.facts, dtype)]

    def check(
        self, tokens: int, change: Callable[[Arguments], Arguments] = lambda given: given
    ) -> None:
        """Compare everything that is supported with the references, on random arguments."""
        for dtype in self.dtypes:
            for one in self.supported(dtype):
                for case in cases(one.name, tokens, dtype, self.device):
                    self._compare(one, change(case), dtype)

    def test_it_offers_operations_that_exist(self) -> None:
        """By the names of the table, at least one."""
        names = [one.name for one in self.make().implementations()]
        assert names
        assert sorted(set(names) - set(vars(OpsTable()))) == []

    def test_it_supports_something_here(self) -> None:
        """Or this test runs on the wrong machine, and nothing else was tested."""
        assert any(self.supported(dtype) for dtype in self.dtypes)

    def test_support_is_answered_in_words_for_every_device(self) -> None:
        """Without touching one: a recipe for another machine is checked here."""
        for kind in ("cpu", "cuda", "rocm", "simulated"):
            facts = DeviceFacts(kind, "", 0, frozenset())
            for one in self.make().implementations():
                for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8"):
                    reasons = one.supports(facts, dtype)
                    assert isinstance(reasons, list), one.name
                    assert all(reasons), one.name
                    assert {type(reason) for reason in reasons} <= {str}, one.name

    def test_the_table_takes_it(self) -> None:
        """Composed, each supported version stands in the table."""
        for dtype in self.dtypes:
            provider = self.make()
            table = compose_ops([provider], self.facts, dtype)
            for one in provider.implementations():
                if not one.supports(self.facts, dtype):
                    assert getattr(table, one.name) is not getattr(OpsTable(), one.name)

    @pytest.mark.parametrize("tokens", [1, 7, 64])
    def test_it_equals_the_reference(self, tokens: int) -> None:
        """In value, shape and dtype, for a single token, a few and many."""
        self.check(tokens)

    def test_large_values_do_not_overflow(self) -> None:
        """Squares are summed in float32: activations of a thousand are common."""
        self.check(3, lambda given: (given[0] * 1000, *given[1:]))

    def test_rows_of_zeros_stay_finite(self) -> None:
        """Padding is such a row."""
        self.check(3, lambda given: (given[0] * 0, *given[1:]))

    def test_a_row_that_is_not_finite_stays_alone(self) -> None:
        """A request whose activations overflowed does not harm its neighbours."""
        for dtype in self.dtypes:
            for one in self.supported(dtype):
                for case in cases(one.name, 5, dtype, self.device):
                    case[0][2] = float("nan")
                    for result in _results(one.function(*case)):
                        finite = result.flatten(1).isfinite().all(dim=1)
                        assert finite.tolist() == [True, True, False, True, True], one.name

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """To the bit: alone, among few and among many, at any place. Three linears may differ."""
        for dtype in self.dtypes:
            for one in self.supported(dtype):
                if one.name not in _DEPENDING:
                    for case in cases(one.name, 70, dtype, self.device):
                        self._compare_parts(one, case)

    def _compare_parts(self, one: OpImplementation, case: Arguments) -> None:
        tokens = len(case[0])
        together = _results(one.function(*_copied(case)))
        for part in (slice(0, 1), slice(36, 37), slice(51, 70)):
            fewer = tuple(
                value[part].clone()
                if isinstance(value, torch.Tensor) and len(value) == tokens
                else value
                for value in case
            )
            results = _results(one.function(*fewer))
            for whole, some in zip(together, results, strict=True):
                assert torch.equal(some, whole[part]), f"{one.name}: rows {part} differ"

    def _compare(self, one: OpImplementation, case: Arguments, dtype: str) -> None:
        reference = getattr(OpsTable(), one.name)
        wanted = _results(reference(*_copied(case)))
        given = _copied(case)
        results = _results(one.function(*given))
        assert len(results) == len(wanted), one.name
        for got, want in zip(results, wanted, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), one.name
            largest = want.double().flatten(1).abs().amax(dim=1).clamp(min=1)
            gap = ((got.double() - want.double()).flatten(1).abs().amax(dim=1) / largest).max()
            assert gap.item() <= self.tolerance[dtype], f"{one.name} is off by {gap.item():.2e}"
        self._check_arguments(one.name, case, given, results)

    @staticmethod
    def _check_arguments(
        name: str, before: Arguments, after: Arguments, results: list[torch.Tensor]
    ) -> None:
        """Nothing is written to but the residual, and that only with the sum."""
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            if not isinstance(old, torch.Tensor) or torch.equal(old, new):
                continue
            may = name in _ADDING and place == 1 and torch.equal(new, results[1])
            assert may, f"{name} wrote to its argument {place}"


def cases(name: str, tokens: int, dtype: str, device: str) -> list[Arguments]:
    """Return random arguments of an operation, for several widths or kinds of layer."""
    generator = torch.Generator().manual_seed(tokens)
    kind: torch.dtype = getattr(torch, dtype)

    def rows(width: int, count: int = tokens) -> torch.Tensor:
        return torch.randn(count, width, generator=generator).to(device, kind)

    def weight(width: int) -> torch.Tensor:
        return 1 + 0.1 * rows(width, 1)[0]

    if name == "rms_norm":
        return [(rows(width), weight(width), 1e-5) for width in WIDTHS]
    if name == "add_rms_norm":
        residuals = [(rows(width), rows(width).float()) for width in WIDTHS]
        return [
            (rows(width), one, weight(width), 1e-6)
            for width, both in zip(WIDTHS, residuals, strict=True)
            for one in both
        ]
    if name in {"silu_mul", "gelu_mul"}:
        return [(rows(2 * width),) for width in WIDTHS]
    if name in _LINEAR:
        return [
            case
            for inputs, outputs in LINEARS
            for case in _linear_cases(name, rows, weight, inputs, outputs)
        ]
    if name == "rope_qk_norm":
        positions = torch.randint(0, 512, (tokens,), generator=generator).to(device)
        return [
            (rows(_qkv_width(layer)), positions, layer)
            for layer in layers(weight, torch.device(device))
        ]
    raise ValueError(f"no arguments are known for '{name}'; add them beside the operation")


def _linear_cases(
    name: str,
    rows: Callable[..., torch.Tensor],
    weight: Callable[[int], torch.Tensor],
    inputs: int,
    outputs: int,
) -> list[Arguments]:
    """Return arguments with and without bias, residual and, where there is one, each gate."""
    matrix = rows(inputs, outputs) / inputs**0.5
    biases = (rows(outputs, 1)[0], None)
    if name in {"linear", "row_linear"}:
        plain = [(rows(inputs), matrix, bias) for bias in biases]
        return [*plain, (rows(inputs), matrix, None, torch.float32)]
    gates = [("silu",), ("gelu",)] if name == "norm_gated_linear" else [()]
    given = [(rows(inputs), biases[0]), (None, None)]
    if inputs == LINEARS[0][0]:  # a wide sum needs no second shape
        given.append((rows(inputs).float(), None))
    return [
        (rows(inputs), residual, weight(inputs), 1e-6, matrix, bias, *gate)
        for residual, bias in given
        for gate in gates
    ]


def layers(weight: Callable[[int], torch.Tensor], device: torch.device) -> list[AttentionLayer]:
    """Return layers with grouped heads, norms, partial rotation, narrow values, no positions."""

    def layer(heads: int, kv_heads: int, value_dim: int, **fields: Any) -> AttentionLayer:  # noqa: ANN401
        return AttentionLayer(0, 0, heads, kv_heads, 16, value_dim, 0.25, **fields)

    whole, half = rope(16, device), rope(8, device)
    norms = {"q_norm": weight(16), "k_norm": weight(16), "norm_eps": 1e-5}
    return [
        layer(4, 4, 16, rope=whole),
        layer(9, 3, 16, rope=whole, **norms),
        layer(4, 2, 8, rope=half),
        layer(4, 1, 16, **norms),
        layer(2, 2, 16),
    ]


def rope(rotated: int, device: torch.device, positions: int = 512) -> Rope:
    """Return the tables of a plain rotary embedding."""
    frequency = 1e4 ** (-torch.arange(0, rotated, 2, device=device).double() / rotated)
    angle = torch.arange(positions, device=device).double()[:, None] * frequency
    return Rope(angle.cos().float(), angle.sin().float())


def _qkv_width(layer: AttentionLayer) -> int:
    return (layer.heads + layer.kv_heads) * layer.head_dim + layer.kv_heads * layer.value_dim


def _copied(case: Arguments) -> Arguments:
    return tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in case)


def _results(found: object) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)  # type: ignore[call-overload]
