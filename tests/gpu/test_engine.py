"""The toy on a CUDA device: answers equal those of the CPU's reference up to the first near-tie."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from camshaft.request import RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import LLAMA, pool
from tests.near_ties import agreeing

pytestmark = pytest.mark.gpu

MODEL = {**LLAMA, "head_dim": 16, "hidden_size": 64}
CUDA: dict[str, Any] = {
    "hardware": {"use": "cuda"},
    "attention": {"use": "triton"},
    "cache": {"page_tokens": 16, "memory": "16MiB"},
    "engine": {"deterministic": False, "depth": 1},
}


def cuda_recipe(**changes: dict[str, Any]) -> dict[str, Any]:
    recipe = {section: dict(fields) for section, fields in CUDA.items()}
    for section, fields in changes.items():
        recipe[section] = {**recipe.get(section, {}), **fields}
    recipe["hardware"].pop("threads", None)
    return recipe


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    chance = random.Random(2)
    common = tuple(chance.randrange(256) for _ in range(40))
    lengths = (1, 7, 16, 17, 33, 90)
    return tuple(
        common[: 40 * (n % 2)] + tuple(chance.randrange(256) for _ in range(length))
        for n, length in enumerate(lengths)
    )


def folder_with_weights(tmp: Any) -> str:
    """Save one set of random weights that both devices load."""
    import transformers

    from camshaft.testing.text import byte_tokenizer

    config = transformers.LlamaConfig(
        **{key: value for key, value in MODEL.items() if key != "model_type"}
    )
    import torch

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, weight.shape[1] ** -0.5)
    model.save_pretrained(tmp)
    byte_tokenizer().save(tmp / "tokenizer.json")
    return str(tmp)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder_with_weights(tmp_path_factory.mktemp("weights"))


def compose_folder(folder: str, changes: dict[str, Any]) -> Any:
    from camshaft.compose import compose
    from camshaft.recipe import parse_recipe
    from camshaft.registry import Registry
    from camshaft.testing.toy import toy_mapping

    mapping = toy_mapping(MODEL, changes)
    mapping["model"] = {"source": folder, "dtype": "float32"}
    if changes.get("hardware", {}).get("use") == "cuda":
        mapping["hardware"] = {"use": "cuda"}
    return compose(parse_recipe(mapping, Registry.discover())).engine


def answers(folder: str, changes: dict[str, Any]) -> tuple[dict[str, RequestOutput], Any]:
    engine = compose_folder(folder, changes)
    for number, prompt in enumerate(prompts()):
        engine.submit(make_request(f"p{number}", prompt, 24, ignore_eos=True, logprobs=2))
    return run_to_end(engine), engine


@pytest.fixture(scope="module")
def wanted(folder: str) -> dict[str, RequestOutput]:
    return answers(folder, {"cache": {"memory": "16MiB", "page_tokens": 16}})[0]


def check(got: dict[str, RequestOutput], wanted: dict[str, RequestOutput]) -> None:
    assert agreeing(wanted, got) > 100


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("step_tokens", [2048, 24])
def test_answers_equal_those_of_the_cpu(
    folder: str, wanted: dict[str, RequestOutput], graphs: bool, step_tokens: int
) -> None:
    recipe = cuda_recipe(engine={"graphs": graphs}, scheduler={"step_tokens": step_tokens})
    got, engine = answers(folder, recipe)
    check(got, wanted)
    replays = engine.parts.executor.graphs.replays if graphs else 0
    assert (replays > 10) == graphs


def test_answers_survive_preemption_and_prefix_hits(
    folder: str, wanted: dict[str, RequestOutput]
) -> None:
    memory = pool(14, MODEL, 16)
    got, engine = answers(folder, cuda_recipe(cache={"memory": memory}, engine={"poison": True}))
    check(got, wanted)
    assert engine.stats.preemptions["no_space"] > 0


def test_a_seeded_batch_gives_the_same_tokens_again(folder: str) -> None:
    engine = compose_folder(folder, cuda_recipe())
    runs = []
    for _ in range(2):
        engine.reset_cache()
        for number, prompt in enumerate(prompts()):
            params = {"temperature": 1.0, "top_p": 0.9, "seed": number, "ignore_eos": True}
            engine.submit(make_request(f"p{number}", prompt, 16, **params))
        runs.append({name: one.token_ids for name, one in run_to_end(engine).items()})
    assert runs[0] == runs[1]
