"""The contract of model families rejects wrong ones: the decoder with one fault each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from camshaft.checkpoint import Checkpoint, CheckpointTensor, ModelConfig
from camshaft.contracts.attention import AttentionLayer
from camshaft.contracts.model import (
    GroupPlan,
    Handover,
    Model,
    ModelFamily,
    ModelParts,
    WholeModel,
)
from camshaft.contracts.quant import StepContext
from camshaft.errors import CheckpointError
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.testing.model import ModelFamilyContract
from camshaft.testing.rejects import failures
from camshaft.testing.tensors import stored_tensor

CONFIG = ModelConfig(
    architecture="decoder",
    hidden=16,
    intermediate=24,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    vocab=32,
    context=64,
    qk_norm=True,
    layer_types=("sliding", "full"),
    sliding_window=3,
)


class SupportsAll(DecoderFamily):
    @staticmethod
    def supports(config: ModelConfig) -> list[str]:
        return []


class LosesALayer(DecoderFamily):
    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        return super().groups(config, page_tokens, dtype)[:1]


class SlidingFirst(DecoderFamily):
    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        return super().groups(config, page_tokens, dtype)[::-1]


class OneNameTooMany(DecoderFamily):
    def names(self, config: ModelConfig, layout: str) -> Mapping[str, str]:
        return {**super().names(config, layout), "extra": "model.extra"}


class Altered(DecoderFamily):
    """Changes the checkpoint, the parts or the built model."""

    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    def parts(self, parts: ModelParts) -> ModelParts:
        return parts

    def alter(self, model: Any) -> None:
        pass

    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        model = super().build(self.checkpoint(checkpoint), self.parts(parts))
        self.alter(model)
        return model


class RandomWhereMissing(Altered):
    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        try:
            return super().build(checkpoint, parts)
        except CheckpointError:
            return super().build(replace(checkpoint, tensors=None), parts)


class NeverWarns(Altered):
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        if type(checkpoint) is not Checkpoint or checkpoint.tensors is None:
            return checkpoint
        known = set(self.names(checkpoint.config, checkpoint.layout).values())
        kept = {name: one for name, one in checkpoint.tensors.items() if name in known}
        return replace(checkpoint, tensors=kept)


class AlwaysWarns(Altered):
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        if type(checkpoint) is not Checkpoint or checkpoint.tensors is None:
            return checkpoint
        more = {"spare": stored_tensor("spare", torch.ones(1))}
        return replace(checkpoint, tensors={**checkpoint.tensors, **more})


class OneSeed(Altered):
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, random_seed=0) if checkpoint.tensors is None else checkpoint


class CutsWhatIsTooLong(Altered):
    def checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        if checkpoint.tensors is None or type(checkpoint) is not Checkpoint:
            return checkpoint
        fitting: dict[str, CheckpointTensor] = {}
        for name, tensor in checkpoint.tensors.items():
            rows = tensor.shape[0] - tensor.shape[0] % 8
            fitting[name] = tensor.rows(0, rows)
        return replace(checkpoint, tensors=fitting)


class BuildsAllLayers(Altered):
    def parts(self, parts: ModelParts) -> ModelParts:
        return replace(parts, layers=(0, CONFIG.layers))


class ForgetsQueryNorms(Altered):
    def alter(self, model: Any) -> None:
        for layer in model.layers:
            layer.attention.q_norm = None


class SaysNothing(Altered):
    def alter(self, model: Any) -> None:
        real = model.logits
        model.logits = lambda hidden, step: torch.zeros_like(real(hidden, step))


class HalfLogits(Altered):
    def alter(self, model: Any) -> None:
        real = model.logits
        model.logits = lambda hidden, step: real(hidden, step).bfloat16()


class MeanOverTheStep(Altered):
    """A norm that takes its scale from the whole step instead of a row."""

    def alter(self, model: Any) -> None:
        real = model.norm
        model.norm = lambda handover: real(handover) / real(handover).std()


class Counts(Altered):
    """Adds up the tokens that it has seen."""

    def alter(self, model: Any) -> None:
        real, seen = model.logits, [0]

        def logits(hidden: torch.Tensor, step: Any) -> Any:
            seen[0] += len(hidden)
            return real(hidden, step) + seen[0]

        model.logits = logits


class ForgetsBytes(Altered):
    def alter(self, model: Any) -> None:
        model.facts = replace(model.facts, weight_bytes=0)


class InOneCall(WholeModel):
    """A decoder's layers, run as if they could not be told apart."""

    def __init__(self, model: Model) -> None:
        self.cut, self.facts = model, model.facts

    @property
    def attentions(self) -> Sequence[AttentionLayer]:
        return self.cut.attentions

    def run(self, tokens: Any, positions: Any, attend: Any, step: Any) -> Handover:
        handover = self.cut.embed(tokens, step)
        for layer in self.cut.layers:
            qkv, carried = layer.before(handover, step)
            handover = layer.after(attend(layer.attention, qkv), carried, step)
        return handover

    def embed(self, tokens: torch.Tensor, step: StepContext) -> Handover:
        return self.cut.embed(tokens, step)

    def norm(self, handover: Handover) -> torch.Tensor:
        return self.cut.norm(handover)

    def logits(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        return self.cut.logits(hidden, step)


class Uncut(Altered):
    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        return InOneCall(super().build(checkpoint, parts))


class UncutMeanOverTheStep(MeanOverTheStep, Uncut):
    """Tokens of a step meet outside attention."""


class UncutLosesALayer(LosesALayer, Uncut):
    """Of a model in one call."""


def contract_of(family: type[DecoderFamily]) -> type[ModelFamilyContract]:
    class Contract(ModelFamilyContract):
        def make(self) -> ModelFamily:
            return family(DecoderSettings())

        def configs(self) -> Sequence[ModelConfig]:
            return [CONFIG]

    return Contract


@pytest.mark.parametrize("family", [DecoderFamily, Uncut])
def test_a_right_family_passes(family: type[DecoderFamily]) -> None:
    assert failures(contract_of(family)) == []


@pytest.mark.parametrize(
    ("wrong", "found_by"),
    [
        (SupportsAll, "test_what_it_builds_is_supported"),
        (LosesALayer, "test_groups_hold_every_layer_once_and_the_full_one_comes_first"),
        (SlidingFirst, "test_groups_hold_every_layer_once_and_the_full_one_comes_first"),
        (OneNameTooMany, "test_names_are_exactly_the_tensors_that_are_read"),
        (RandomWhereMissing, "test_a_missing_tensor_is_an_error_that_names_it"),
        (NeverWarns, "test_unknown_tensors_give_one_warning_that_names_them"),
        (AlwaysWarns, "test_unknown_tensors_give_one_warning_that_names_them"),
        (OneSeed, "test_random_weights_follow_the_seed"),
        (CutsWhatIsTooLong, "test_a_misshapen_tensor_is_an_error_that_names_it"),
        (BuildsAllLayers, "test_any_range_of_layers_builds_and_hands_over"),
        (ForgetsQueryNorms, "test_every_tensor_has_an_effect"),
        (SaysNothing, "test_logits_are_float32_of_the_right_shape_and_depend_on_the_tokens"),
        (HalfLogits, "test_logits_are_float32_of_the_right_shape_and_depend_on_the_tokens"),
        (MeanOverTheStep, "test_deterministic_layers_work_row_by_row"),
        (UncutMeanOverTheStep, "test_tokens_of_a_whole_model_meet_in_attention_alone"),
        (UncutLosesALayer, "test_groups_hold_every_layer_once_and_the_full_one_comes_first"),
        (Counts, "test_a_model_keeps_nothing_of_a_step"),
        (ForgetsBytes, "test_facts_are_those_of_the_configuration"),
    ],
)
def test_a_wrong_family_is_rejected(wrong: type[DecoderFamily], found_by: str) -> None:
    assert found_by in failures(contract_of(wrong), only=[found_by])
