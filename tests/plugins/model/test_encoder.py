"""The encoder keeps the contract of model families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from camshaft.checkpoint import ModelConfig
from camshaft.component import Settings
from camshaft.contracts.model import ModelFamily
from camshaft.contracts.quant import StepContext
from camshaft.errors import PluginError
from camshaft.plugins.model.encoder import EncoderFamily
from camshaft.testing.model import ModelFamilyContract, model_parts, random_weights

BERT = ModelConfig(
    architecture="bert",
    hidden=24,
    intermediate=40,
    layers=3,
    heads=4,
    kv_heads=4,
    head_dim=6,
    vocab=48,
    context=64,
    norm_eps=1e-12,
    hidden_act="gelu",
)


class TestContract(ModelFamilyContract):
    causal = False

    def make(self) -> ModelFamily:
        return EncoderFamily(Settings())

    def configs(self) -> Sequence[ModelConfig]:
        return [BERT, replace(BERT, hidden_act="relu", heads=2, kv_heads=2, head_dim=12)]


def test_there_is_no_head_and_one_rank() -> None:
    family = EncoderFamily(Settings())
    model = family.build(random_weights(BERT, 0), model_parts(BERT))
    with pytest.raises(PluginError, match="an encoder has no head"):
        model.logits(torch.zeros(1, 24), StepContext(1))
    with pytest.raises(PluginError, match="runs on one rank; 2 are asked for"):
        family.build(random_weights(BERT, 0), replace(model_parts(BERT), ranks=2))
