"""Cases of public bug reports: tied heads, and positions that are stretched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from camshaft.checkpoint import open_checkpoint
from camshaft.contracts.model import Model
from camshaft.errors import CheckpointError
from camshaft.plugins.model.components import DecoderSettings
from camshaft.plugins.model.decoder import DecoderFamily
from camshaft.testing.model import model_parts, run

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
TOKENS = [(7 * at + 3) % 64 for at in range(200)]


def reference(folder: Path, **fields: Any) -> Any:
    """Write a random Llama of transformers and return it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{**TINY, **fields})
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, weight.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return model


def built(folder: Path) -> Model:
    checkpoint = open_checkpoint(str(folder))
    parts = replace(model_parts(checkpoint.config), max_context=checkpoint.config.context)
    return DecoderFamily(DecoderSettings()).build(checkpoint, parts)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(fields)
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def set_head(folder: Path, head: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    if head is not None:
        tensors["lm_head.weight"] = head
    save_file(tensors, path, {"format": "pt"})


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """A folder with a tied model, its embedding, and its logits."""
    model = reference(tmp_path, tie_word_embeddings=True)
    return tmp_path, model.model.embed_tokens.weight.detach().clone(), run(built(tmp_path), TOKENS)


def test_QNT_01_a_tied_head_may_be_in_the_file_or_not(tied) -> None:
    folder, embedding, logits = tied
    set_head(folder, embedding.clone())
    assert torch.equal(run(built(folder), TOKENS), logits)


def test_QNT_01_an_own_head_is_used(tied) -> None:
    folder, embedding, logits = tied
    set_head(folder, embedding.flip(0).contiguous())
    change_config(folder, tie_word_embeddings=False)
    torch.testing.assert_close(run(built(folder), TOKENS), logits.flip(1), rtol=0, atol=1e-5)


def test_QNT_01_a_missing_own_head_is_refused_by_name(tied) -> None:
    folder, _, _ = tied
    change_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        built(folder)


STRETCHED: list[dict[str, Any]] = [
    {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "kind": "llama3",
    },
    {"factor": 4.0, "original_max_position_embeddings": 64, "kind": "yarn"},
    {"factor": 4.0, "kind": "linear"},
]


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("scaling", STRETCHED, ids=lambda one: one["kind"])
def test_NUM_06_both_spellings_give_the_logits_of_transformers(
    tmp_path: Path, scaling: dict[str, Any], key: str
) -> None:
    fields = {name: value for name, value in scaling.items() if name != "kind"}
    rope = {"rope_theta": 10000.0, "rope_type": scaling["kind"], **fields}
    model = reference(tmp_path, rope_parameters=rope)
    with torch.inference_mode():
        wanted = model(torch.tensor([TOKENS])).logits[0].float()
    change_config(
        tmp_path,
        rope_parameters=None,
        rope_theta=10000.0,
        rope_scaling={key: scaling["kind"], **fields},
    )
    ours = built(tmp_path)
    assert open_checkpoint(str(tmp_path)).config.context == 256  # and not four times that
    found = run(ours, TOKENS)
    at = [0, 63, 64, 199]
    torch.testing.assert_close(found[at], wanted[at], rtol=0, atol=1e-3)
    change_config(tmp_path, rope_scaling=None)
    assert (run(built(tmp_path), TOKENS)[199] - wanted[199]).abs().max() > 1e-2  # it has an effect


def test_NUM_06_a_kind_that_is_not_known_is_refused_not_ignored(tmp_path: Path) -> None:
    reference(tmp_path)
    change_config(tmp_path, rope_parameters=None, rope_scaling={"type": "yarm", "factor": 4.0})
    with pytest.raises(CheckpointError, match="rope_type 'yarm' is not supported; did you mean"):
        open_checkpoint(str(tmp_path))
