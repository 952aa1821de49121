"""A place to run what pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.reading import ROOT


@pytest.fixture
def beside_the_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which `recipes/` is ours, as in the repository's root."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path
