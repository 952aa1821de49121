"""The sum that runs through all layers, in the model's precision or in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from camshaft.checkpoint import ModelConfig
from camshaft.contracts.model import Handover, Model
from camshaft.contracts.quant import StepContext
from camshaft.ops import OpsTable
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.quant.components import NoneSettings
from camshaft.plugins.quant.none import PlainLinear, Unquantized
from camshaft.testing.dense import dense_logits, run_layers
from camshaft.testing.model import model_parts, random_weights

DEEP = ModelConfig(
    architecture="llama",
    hidden=32,
    intermediate=48,
    layers=16,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=64,
    context=64,
    tie_embeddings=False,
)
TOKENS = [(7 * at + 3) % 64 for at in range(40)]


def built(
    residual: Literal["model", "float32"], dtype: str = "bfloat16", *, deterministic: bool = False
) -> Model:
    parts = replace(
        model_parts(DEEP),
        quantizer=Unquantized(NoneSettings()),
        ops=OpsTable(),
        dtype=dtype,
        deterministic=deterministic,
    )
    return DecoderFamily(DecoderSettings(residual=residual)).build(random_weights(DEEP, 3), parts)


@torch.inference_mode()
def last(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    first = model.embed(torch.tensor(TOKENS), StepContext(tokens=len(TOKENS)))
    hidden, residual = run_layers(model.layers, OpsTable(), first)
    assert residual is not None
    return hidden, residual


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_sum_keeps_digits_that_the_model_has_not(deterministic: bool) -> None:
    model = built("float32", deterministic=deterministic)
    hidden, residual = last(model)
    assert (hidden.dtype, residual.dtype) == (torch.bfloat16, torch.float32)
    assert torch.ne(residual, residual.bfloat16()).double().mean() > 0.9
    with torch.inference_mode():
        assert model.norm(Handover(hidden, residual)).dtype is torch.bfloat16


def test_by_default_it_has_the_models_own_digits() -> None:
    assert last(built("model"))[1].dtype is torch.bfloat16


def test_linears_of_any_form_add_to_it_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = dense_logits(built("float32"), OpsTable(), TOKENS)
    monkeypatch.setattr(PlainLinear, "dense", lambda self: None)
    assert torch.equal(dense_logits(built("float32"), OpsTable(), TOKENS), fused)


def test_with_it_logits_are_nearer_to_those_of_float32() -> None:
    exact = dense_logits(built("model", "float32"), OpsTable(), TOKENS)
    errors = [
        (dense_logits(built(one), OpsTable(), TOKENS) - exact).abs().mean()
        for one in ("model", "float32")
    ]
    assert errors[1] < 0.9 * errors[0]


def test_a_model_in_float32_has_nothing_to_widen() -> None:
    wanted = dense_logits(built("model", "float32"), OpsTable(), TOKENS)
    assert torch.equal(dense_logits(built("float32", "float32"), OpsTable(), TOKENS), wanted)
