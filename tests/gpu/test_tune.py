"""What `engine tune` measures on a CUDA device: operations, launches, and kernels side by side."""

from __future__ import annotations

import pytest

from camshaft.compose import compose
from camshaft.plugins.lab.tuning.costs import Mix
from camshaft.plugins.lab.tuning.measuring import survey
from camshaft.plugins.lab.tuning.search import search
from camshaft.plugins.lab.tuning.steps import Load
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.toy import LLAMA, toy_mapping

pytestmark = pytest.mark.gpu

MODEL = {**LLAMA, "head_dim": 64, "hidden_size": 64}


def test_a_step_is_measured_and_searched() -> None:
    mapping = toy_mapping(MODEL, {"cache": {"page_tokens": 16, "memory": "4MiB"}})
    mapping["model"]["dtype"] = "bfloat16"
    mapping |= {"hardware": "cuda", "attention": "triton", "ops": ["triton"]}
    mapping["engine"] = {"warm_up": "off"}
    mapping["scheduler"] |= {"step_tokens": 512, "max_running": 16}
    composed = compose(parse_recipe(mapping, Registry.discover()))
    load = Load(Mix(8, 4), context=64, length=32)
    found = survey(composed, load, None, print)
    composed.engine.close()
    costs = found.costs
    assert all(one.seconds > 0 for one in costs.layer(load.mix))
    assert costs.ends.at(12).seconds > 0
    assert costs.host.decode_s > 0
    assert costs.host.mixed_s > 0
    assert -1 <= costs.overlap <= 1
    assert len(search(costs, load.mix).tried) == 29
