"""Parts that do not fit each other, the model or the device: every misfit, all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft import Capability, Component, RecipeError, Registry
from camshaft.compose import draw
from camshaft.contracts.predictor import StepShape, StepTimePredictor
from camshaft.contracts.sampling import RowContext, Sampled
from camshaft.contracts.speculator import Speculator
from camshaft.recipe import parse_recipe
from camshaft.testing.toy import toy_mapping, toy_recipe

CUDA = frozenset({Capability.CUDA})
OURS = "camshaft.plugins.attention.reference:ReferenceAttention"


class Guess(StepTimePredictor):
    def predict(self, shape: StepShape) -> float:
        return 1.0

    def observe(self, shape: StepShape, seconds: float) -> None: ...


class Silent(Speculator):
    def kv_spec(self) -> None: ...

    def propose(
        self, rows: RowContext, sampled: Sampled, hidden: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        return torch.full((len(rows.slots), 1), -1)

    def verify(self, rows: RowContext, sampled: Sampled) -> None: ...


def faults(changes: dict[str, Any], *components: Component) -> list[str]:
    registry = Registry.discover().with_components(components)
    with pytest.raises(RecipeError) as caught:
        draw(toy_recipe(changes=changes, registry=registry))
    return [fault.text for fault in caught.value.faults]


def test_a_toy_fits() -> None:
    drawing = draw(toy_recipe())
    assert [group.layers for group in drawing.groups] == [(0, 1)]
    assert drawing.max_context == 512


def test_a_part_that_this_version_does_not_run_is_refused() -> None:
    component = Component("speculator", "silent", f"{__name__}:Silent")
    found = faults({"sampling": {"speculator": "silent"}}, component)
    assert found == ["sampling.speculator: this version does not run one yet"]


def test_a_part_that_needs_what_the_device_lacks_is_refused_wherever_it_is_named() -> None:
    component = Component("attention", "on_a_gpu", OURS, needs=CUDA)
    found = faults({"attention": {"use": "on_a_gpu"}}, component)
    assert [text.partition(" needs cuda, which ")[0] for text in found] == [
        "attention.prefill: 'on_a_gpu'",
        "attention.decode: 'on_a_gpu'",
    ]


def test_a_context_longer_than_the_model_s_is_refused() -> None:
    found = faults({"model": {"max_context": 513}})
    assert found == ["model.max_context: 513 is more than the 512 that the model was made for"]


def test_a_shape_that_no_model_component_runs_is_refused_with_the_reasons() -> None:
    names = ("decoder", "encoder", "transformers")
    [text] = faults({}, *(Component("model", name, f"{__name__}:Guess") for name in names))
    assert text.startswith("model: nothing installed runs 'llama' (")


def test_all_misfits_come_together() -> None:
    component = Component("speculator", "silent", f"{__name__}:Silent")
    changes = {"model": {"max_context": 600}, "sampling": {"speculator": "silent"}}
    assert [text.partition(":")[0] for text in faults(changes, component)] == [
        "sampling.speculator",
        "model.max_context",
    ]


def test_two_backends_do_not_give_a_token_the_same_bits() -> None:
    mapping = toy_mapping()
    mapping["attention"] = {"prefill": "reference", "decode": "sdpa"}
    with pytest.raises(RecipeError, match="'reference' and 'sdpa' round differently"):
        draw(parse_recipe(mapping, Registry.discover()))
