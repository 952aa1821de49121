"""One device's part of a model has the shape that Megatron's division gives it."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft import Recipe, Registry, parse_recipe
from camshaft.errors import CamshaftError
from camshaft.plugins.lab.tuning.sharded import sharded

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096,
    "max_position_embeddings": 512, "eos_token_id": 2000,
}  # fmt: skip


def recipe(model: dict[str, Any]) -> Recipe:
    mapping = {
        "model": model,
        "hardware": "cpu",
        "attention": "reference",
        "cache": "paged",
        "scheduler": "continuous",
    }
    return parse_recipe(mapping, Registry.discover())


def test_heads_widths_and_vocabulary_are_divided() -> None:
    assert sharded(recipe({"config": CONFIG}), 4) == [
        "model.config.num_attention_heads=2",
        "model.config.num_key_value_heads=1",  # two devices have the same
        "model.config.head_dim=8",
        "model.config.intermediate_size=24",
        "model.config.vocab_size=1024",
        "model.config.eos_token_id=0",
    ]


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(CamshaftError, match="3 devices cannot share .*num_attention_heads: 8"):
        sharded(recipe({"config": CONFIG}), 3)
    with pytest.raises(CamshaftError, match="4 devices cannot share .*num_key_value_heads: 6"):
        sharded(recipe({"config": {**CONFIG, "num_key_value_heads": 6}}), 4)


def test_a_model_of_a_file_has_no_part_with_random_weights() -> None:
    with pytest.raises(CamshaftError, match="needs a recipe with `model.config`"):
        sharded(recipe({"source": "some/folder"}), 2)
