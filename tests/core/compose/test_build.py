from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from camshaft.compose import compose
from camshaft.contracts.attention import AttentionBackend
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.toy import LLAMA, toy_mapping


@pytest.mark.parametrize(
    ("attention", "backends"), [("sdpa", 1), ({"prefill": "sdpa", "decode": "reference"}, 2)]
)
def test_every_backend_is_warmed_up_once(attention: str | dict[str, str], backends: int) -> None:
    changes: dict[str, dict[str, Any]] = {
        "scheduler": {"step_tokens": 24},
        "engine": {"deterministic": False, "warm_up": "kernels"},
    }
    recipe = {**toy_mapping(LLAMA, changes), "attention": attention}
    with mock.patch.object(AttentionBackend, "warm_up") as warm_up:
        compose(parse_recipe(recipe, Registry.discover()))
    assert warm_up.mock_calls == [mock.call("cpu", 24)] * backends
