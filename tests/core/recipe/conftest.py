"""A registry of small components, so that recipes can be read without any plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from camshaft import Recipe, Registry, load_recipe

BASE = """
model: {source: model.gguf}
hardware: cpu
attention: {use: sdpa, split: 4}
cache:
  use: paged
  page_tokens: 32
  sharing: strict
scheduler: {use: chunked, step_tokens: 512, chunk_tokens: 128}
"""


TOYS = Path(__file__).with_name("toys.py")


@pytest.fixture
def registry() -> Registry:
    return Registry().with_files([TOYS])


@pytest.fixture
def load(tmp_path: Path, registry: Registry, write) -> Callable[..., Recipe]:
    """Write a recipe that varies BASE (or is whole, with `alone`) and load it."""
    write("base.yaml", BASE)

    def loader(text: str = "", *overrides: str, alone: bool = False, **environment: str) -> Recipe:
        path = write("recipe.yaml", text if alone else f"extends: base.yaml\n{text}")
        return load_recipe(path, registry, overrides, environment)

    return loader
