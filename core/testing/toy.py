"""Toy models: tiny shapes with random float32 weights, and recipes around them. Run by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..recipe import Recipe, parse_recipe
from ..registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..compose import Composed

VOCAB = 320
"""Of all toys: bytes, a few control tokens, and some ids that no text has."""

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 258,
}
"""Full attention everywhere."""

HYBRID: dict[str, Any] = {
    **LLAMA,
    "model_type": "decoder",
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "attention_sinks": True,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
    "qk_norm": True,
    "attention_bias": True,
}
"""Everything that can go wrong: windows, sinks, soft caps, norms on queries and keys, biases."""


def toy_mapping(
    model: Mapping[str, Any] = LLAMA, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a recipe for a toy as plain data, in the deterministic configuration.

    Args:
        model: Shape of the model.
        changes: Fields to set, by section.
    """
    recipe: dict[str, dict[str, Any]] = {
        "model": {"config": dict(model), "dtype": "float32", "name": "toy"},
        "hardware": {"use": "cpu", "threads": 1},
        "attention": {"use": "reference"},
        "cache": {"use": "paged", "page_tokens": 4, "memory": "1MiB"},
        "scheduler": {"use": "continuous", "step_tokens": 64, "max_running": 8},
        "quant": {"use": "none"},
        "sampling": {"use": "standard"},
        "engine": {"deterministic": True, "debug": True},
        "server": {"port": 0},
    }
    for section, fields in (changes or {}).items():
        recipe[section] = {**recipe.get(section, {}), **fields}
    return recipe


def toy_recipe(
    model: Mapping[str, Any] = LLAMA,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Iterable[str] = (),
    registry: Registry | None = None,
) -> Recipe:
    """Return a validated recipe for a toy."""
    return parse_recipe(toy_mapping(model, changes), registry or Registry.discover(), overrides)


def compose_toy(
    model: Mapping[str, Any] = LLAMA,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Iterable[str] = (),
    registry: Registry | None = None,
) -> Composed:
    """Return a running toy engine."""
    from ..compose import compose

    return compose(toy_recipe(model, changes, overrides, registry))


def pool(pages: int, model: Mapping[str, Any] = LLAMA, page_tokens: int = 4) -> str:
    """Return the `cache.memory` that holds exactly so many pages of a float32 toy."""
    head = model["hidden_size"] // model["num_attention_heads"]
    token = 2 * 4 * head * model["num_key_value_heads"] * model["num_hidden_layers"]
    return str((pages + 1) * page_tokens * token)
