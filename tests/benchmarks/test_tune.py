"""The recorder of predictions: a call of `engine tune` becomes figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tune import CASES, LLAMA_70B, RECIPE, Case, figures, tuned
from camshaft import Registry, load_recipe
from camshaft.plugins.lab.tuning.sharded import sharded

TOY = Path(__file__).parents[2] / "recipes" / "toy.yaml"
ROOM = ("scheduler.step_tokens=1100", "model.config.max_position_embeddings=2048")


def test_a_case_gives_times_gains_and_operations() -> None:
    case = Case("toy", 2, 1, 2, (*ROOM, "cache.memory=2MiB"))
    found = tuned(case.words(TOY, 450.0))
    written = {(one.recipe, one.metric): one.repeats for one in figures("run", "toy", case, found)}
    assert written["one batch", "predicted_step_ms"][0] > 0
    assert written["measured", "overlap"] == [0.0]
    assert ("all-reduce, network", "operation_ms") in written
    gains = [metric for _, metric in written if metric == "predicted_gain"]
    assert len(gains) == 1


def test_the_recipe_has_room_for_every_case_and_its_model_can_be_shared() -> None:
    recipe = load_recipe(RECIPE, Registry.discover(), LLAMA_70B)
    assert sharded(recipe, 8)[1] == "model.config.num_key_value_heads=1"
    for case in CASES.values():
        assert case.decodes + case.prompts <= recipe.scheduler.max_running
        assert case.decodes + 512 * case.prompts <= recipe.scheduler.step_tokens
        # 60 GiB of pages, each token of 80 or 32 layers, 2 x 8 heads of 128 numbers of 2 bytes
        layers = 80 if case.overrides else 32
        tokens = case.decodes * 1025 + case.prompts * 512
        assert tokens * layers * 2 * 8 * 128 * 2 / case.devices <= 60 * 2**30
