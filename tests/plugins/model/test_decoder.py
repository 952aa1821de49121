"""The decoder keeps the contract of model families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from camshaft.checkpoint import ModelConfig, Rope
from camshaft.contracts.model import ModelFamily
from camshaft.errors import CheckpointError, PluginError
from camshaft.ops import OpsTable
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.model.layer import DecoderLayer, FusedLayer, row_by_row
from camshaft.plugins.quant.components import NoneSettings
from camshaft.plugins.quant.none import PlainLinear, Unquantized
from camshaft.testing.dense import dense_logits
from camshaft.testing.model import ModelFamilyContract, model_parts, random_weights

LLAMA = ModelConfig(
    architecture="llama",
    hidden=24,
    intermediate=40,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=48,
    context=64,
    tie_embeddings=True,
)
HYBRID = replace(
    LLAMA,
    architecture="decoder",
    layers=3,
    tie_embeddings=False,
    attention_bias=True,
    attention_out_bias=True,
    mlp_bias=True,
    qk_norm=True,
    layer_types=("sliding", "full", "sliding"),
    sliding_window=4,
    logit_softcap=2.0,
    attention_softcap=1.5,
    attention_sinks=True,
    hidden_act="gelu_pytorch_tanh",
)


class TestDecoder(ModelFamilyContract):
    layouts = ("hf", "gguf")

    def make(self) -> ModelFamily:
        return DecoderFamily(DecoderSettings())

    def configs(self) -> Sequence[ModelConfig]:
        return [LLAMA, HYBRID]


def family() -> DecoderFamily:
    return DecoderFamily(DecoderSettings())


def test_a_group_is_made_for_each_type_of_layer() -> None:
    groups = family().groups(HYBRID, 16, "bfloat16")
    assert [(group.layers, group.spec.window) for group in groups] == [((1,), 0), ((0, 2), 4)]


def test_a_model_whose_layers_all_slide_has_one_group() -> None:
    config = replace(LLAMA, layer_types=("sliding", "sliding"), sliding_window=9)
    groups = family().groups(config, 16, "float32")
    assert [(group.layers, group.spec.window) for group in groups] == [((0, 1), 9)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "relu"}, "activation 'relu' is not implemented"),
        ({"rope": Rope(kind="dynamic", factor=2.0)}, "rope 'dynamic' is not implemented"),
        ({"rope": Rope(kind="longrope")}, "rope 'longrope' is not implemented"),
        ({"rope": Rope(rotary_share=0.4)}, "3 of 8 elements of a head cannot rotate in pairs"),
        ({"rope": Rope(kind="divisors", divisors=(1.0,))}, "1 rope divisors do not fit 4"),
        ({"rope": Rope(kind="linear")}, "rope 'linear' has no factor"),
        ({"rope": Rope(kind="yarn", factor=2.0)}, "does not say which context it stretches"),
        ({"rope": Rope(kind="llama3", factor=2.0)}, "lacks its two frequency factors"),
        ({"heads": 3}, "3 query heads cannot share 2 key heads"),
        ({"architecture": "mamba"}, "'mamba' is none of its architectures"),
        ({"layer_types": ("full", "linear")}, "layers of type linear are not implemented"),
    ],
)
def test_what_is_not_implemented_is_refused_in_words(
    changes: dict[str, object], reason: str
) -> None:
    config = replace(LLAMA, **changes)  # type: ignore[arg-type]
    assert any(reason in one for one in family().supports(config))
    with pytest.raises(CheckpointError, match=r"toy: .+"):
        family().build(random_weights(config, 0), model_parts(config))


def test_more_than_one_rank_is_refused() -> None:
    parts = replace(model_parts(LLAMA), ranks=2)
    with pytest.raises(PluginError, match="runs on one rank; 2 are asked for"):
        family().build(random_weights(LLAMA, 0), parts)


def test_tied_weights_are_held_once() -> None:
    tied = family().build(random_weights(LLAMA, 0), model_parts(LLAMA)).facts
    free = replace(LLAMA, tie_embeddings=False)
    untied = family().build(random_weights(free, 0), model_parts(free)).facts
    assert untied.weight_bytes - tied.weight_bytes == 4 * LLAMA.vocab * LLAMA.hidden
    assert untied.parameters == tied.parameters  # the embedding is looked up, not multiplied


def plain(config: ModelConfig, *, deterministic: bool = False, ops: OpsTable | None = None):
    parts = replace(
        model_parts(config),
        quantizer=Unquantized(NoneSettings()),
        deterministic=deterministic,
        ops=ops or OpsTable(),
    )
    return family().build(random_weights(config, 1), parts)


@pytest.mark.parametrize("config", [LLAMA, HYBRID])
def test_fused_layers_give_the_same_bits_as_applied_linears(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = plain(config)
    monkeypatch.setattr(PlainLinear, "dense", lambda self: None)
    applied = plain(config)
    assert [type(model.layers[0]) for model in (fused, applied)] == [FusedLayer, DecoderLayer]
    logits = [dense_logits(model, OpsTable(), [3, 1, 4, 1, 5]) for model in (fused, applied)]
    assert torch.equal(*logits)


def test_deterministic_layers_are_not_fused() -> None:
    model = plain(LLAMA, deterministic=True)
    assert [type(one) for one in model.layers] == [DecoderLayer, DecoderLayer]


@pytest.mark.parametrize(
    ("deterministic", "used", "avoided"),
    [(False, "linear", "row_linear"), (True, "row_linear", "linear")],
)
def test_the_head_and_the_layers_multiply_through_the_table(
    deterministic: bool, used: str, avoided: str
) -> None:
    table, shapes = OpsTable(), []
    multiply = getattr(table, used)

    def linear(x, weight, bias, dtype=None):
        shapes.append(tuple(weight.shape))
        return multiply(x, weight, bias, dtype)

    table.replace(used, linear)
    table.replace(avoided, pytest.fail)
    dense_logits(plain(LLAMA, deterministic=deterministic, ops=table), table, [1, 2])
    layer = [(64, 24), (24, 32), (80, 24), (24, 40)]
    assert shapes == [*layer, *layer, (48, 24)]


def test_a_row_by_row_function_never_sees_two_rows() -> None:
    lessened = row_by_row(lambda x: x - x.mean())
    assert lessened(torch.tensor([[1.0, 3.0], [10.0, 30.0]])).tolist() == [[-1, 1], [-10, 10]]
