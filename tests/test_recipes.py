"""Every recipe that we ship composes with the plugins that we ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft import Registry, load_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
KINDS = ("hardware", "attention", "cache", "eviction", "scheduler", "quant", "kv_quant", "sampling")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_names_what_is_there(path: Path) -> None:
    registry = Registry.discover()
    absent = [kind for kind in KINDS if not registry.components(kind)]
    if absent:
        pytest.skip(f"this version has no plugin yet for {', '.join(absent)}")
    load_recipe(path, registry).check_implementations()


def test_the_quickstart_and_its_reference_are_shipped() -> None:
    assert {"quickstart", "reference"} <= {path.stem for path in RECIPES}
