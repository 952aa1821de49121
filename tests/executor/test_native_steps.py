"""Decode steps with compiled attention, recorded as an engine does it, against eager ones."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft import native
from camshaft.compose import Composed
from camshaft.native.tape import Recorded
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy
from tests.executor.test_graphs import answers, executor_of, modular_answers

pytestmark = pytest.mark.skipif(bool(native.reasons()), reason="no compiled operations here")

WIDE = {"hidden_size": 64}  # heads of 16


def engine(model: dict[str, Any], *, graphs: bool, cache: str = "paged") -> Composed:
    changes: dict[str, Any] = {
        "attention": {"use": "native"},
        "cache": {"use": cache},
        "engine": {"graphs": graphs, "deterministic": False},
    }
    return compose_toy({**model, **WIDE}, changes)


@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_recorded_steps_give_the_tokens_of_eager_steps(model: dict[str, Any]) -> None:
    wanted = answers(engine(model, graphs=False))
    composed = engine(model, graphs=True)
    assert answers(composed) == wanted
    graphs = executor_of(composed).graphs
    assert graphs is not None
    assert graphs.replays >= 12
    made = [one.graph for one in graphs._recorded.values()]
    assert all(isinstance(one, Recorded) for one in made)


def test_recorded_steps_place_tokens_behind_modules() -> None:
    wanted = modular_answers(engine(LLAMA, graphs=False, cache="modular"))
    composed = engine(LLAMA, graphs=True, cache="modular")
    assert modular_answers(composed) == wanted
    graphs = executor_of(composed).graphs
    assert graphs is not None
    assert {shifted for *_, shifted in graphs._recorded} == {True}
