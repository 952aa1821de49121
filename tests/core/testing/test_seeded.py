from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from camshaft.testing.seeded import seeded_backend


def drawn() -> list[int]:
    found: list[int] = []

    @seed(7)
    @settings(backend=seeded_backend(), database=None, deadline=None, max_examples=100)
    @given(st.integers(0, 254))
    def draw(number: int) -> None:
        found.append(number)

    draw()
    return found


def test_a_seed_draws_the_same_whatever_else_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    others = tmp_path / "others.py"
    others.write_text(f"NUMBERS = {list(range(101, 200))}")
    module = ModuleType("others_with_numbers")
    module.__file__ = str(others)
    monkeypatch.setitem(sys.modules, "others_with_numbers", module)
    assert drawn() == before
    assert len(set(before)) > 50
