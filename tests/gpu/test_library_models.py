"""Models of the transformers library on a device, eagerly and in graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.testing.text import byte_tokenizer
from tests.toy.test_library_parity import FAMILIES, answers, check, library_model, prompts
from tests.toy.test_transformers_parity import greedy

pytestmark = pytest.mark.gpu

WIDE = {"hidden_size": 128, "max_position_embeddings": 256}
EXPERTS = ("mixtral",)
"""Run eagerly whatever the recipe says: their products ask the host for sizes."""
DEVICE: dict[str, Any] = {
    "hardware": {"use": "cuda"},
    "attention": {"use": "triton"},
    "cache": {"page_tokens": 16, "memory": "16MiB"},
}


@pytest.fixture(scope="module", params=["gpt2", "gpt_neox", "phi3", "mixtral"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model with heads of 32, and what the library says on the CPU."""
    model = library_model(request.param, {**FAMILIES[request.param], **WIDE})
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    is_recordable = request.param not in EXPERTS
    return folder, [greedy(model, prompt) for prompt in prompts()], is_recordable


def compose_on_device(folder: Path, graphs: bool) -> Any:
    from camshaft.compose import compose
    from camshaft.recipe import parse_recipe
    from camshaft.registry import Registry
    from camshaft.testing.toy import toy_mapping

    mapping = toy_mapping(changes=DEVICE)
    mapping["hardware"] = {"use": "cuda"}
    mapping["model"] = {"use": "transformers", "source": str(folder), "dtype": "float32"}
    mapping["engine"] = {"graphs": graphs, "debug": True}
    return compose(parse_recipe(mapping, Registry.discover())).engine


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_answers_equal_those_of_the_library(family: Any, graphs: bool) -> None:
    folder, wanted, is_recordable = family
    engine = compose_on_device(folder, graphs)
    for _ in range(2):  # the second time from the cache
        check(answers(engine, [0, 1, 2]), wanted)
    recorded = engine.parts.executor.graphs
    assert (recorded is not None and recorded.replays > 0) == (graphs and is_recordable)
