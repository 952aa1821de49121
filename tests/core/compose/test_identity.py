from __future__ import annotations

from typing import Any

import pytest

from camshaft.compose import compose
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.toy import LLAMA, toy_mapping

REGISTRY = Registry.discover()


def identity(changes: dict[str, dict[str, Any]] | None = None, model: Any = LLAMA) -> bytes:
    recipe = parse_recipe(toy_mapping(model, changes), REGISTRY)
    cache: Any = compose(recipe).engine.parts.cache
    return bytes(cache.spec.identity)


def test_the_same_recipe_has_the_same_identity_and_pool_sizes_do_not_matter():
    assert identity() == identity({"cache": {"memory": "2MiB"}})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"seed": 1}},
        {"model": {"dtype": "bfloat16"}, "engine": {"deterministic": False}},
        {"cache": {"page_tokens": 8}},
    ],
)
def test_TIR_03_pages_of_another_engine_have_another_identity(changes):
    assert identity(changes) != identity()


def test_TIR_03_another_rope_has_another_identity():
    assert identity(model={**LLAMA, "rope_theta": 5000.0}) != identity()
