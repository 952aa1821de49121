from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from camshaft.compose import compose
from camshaft.contracts.attention import AttentionBackend
from camshaft.contracts.hardware import MemoryReport
from camshaft.contracts.predictor import StepShape
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.engines import make_request, run_to_end
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


def test_a_device_with_graphs_gets_the_pages_that_a_measured_step_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the CPU were one: the largest steps run before pages are counted, and again after."""
    page = 2 * 2 * 8 * 2 * 4 * 4  # keys and values, kv heads, dimension, layers, bytes, tokens
    free = MemoryReport(2**30, 400 * page)
    monkeypatch.setattr(CpuBackend, "memory", lambda self: free)
    peaks = iter([0, 50 * page])
    monkeypatch.setattr(CpuBackend, "peak", lambda self: next(peaks))
    facts = CpuBackend.facts

    def with_graphs(self: CpuBackend) -> DeviceFacts:
        found = facts(self)
        return replace(found, capabilities=found.capabilities | {Capability.GRAPHS})

    monkeypatch.setattr(CpuBackend, "facts", with_graphs)
    changes: dict[str, dict[str, Any]] = {"cache": {"memory": "auto"}, "engine": {"warm_up": "off"}}
    composed = compose(parse_recipe(toy_mapping(LLAMA, changes), Registry.discover()))
    assert composed.memory.pages == 400 - 2 * 50 - 1
    composed.engine.submit(make_request("one", [1, 2, 3], 4, ignore_eos=True))
    assert len(run_to_end(composed.engine)["one"].token_ids) == 4


@pytest.mark.parametrize("executor", ["torch", "null"])
def test_the_predictor_learns_from_every_step_and_its_error_is_counted(executor: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "scheduler": {"predictor": "fitted"},
        "engine": {"executor": {"use": executor}},
    }
    engine = compose(parse_recipe(toy_mapping(LLAMA, changes), Registry.discover())).engine
    shape = StepShape(1, 1, 1, 5, 1)
    before = engine.view.predict(shape)
    engine.submit(make_request("one", [1, 2, 3], 8, ignore_eos=True))
    run_to_end(engine)
    assert 0 < engine.view.predict(shape) != before
    assert engine.stats.prediction_error is not None
