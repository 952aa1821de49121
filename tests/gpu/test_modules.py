"""Prompts out of modules on a CUDA device: answers equal those of the CPU's reference."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.request import RequestOutput, TokenSpan
from camshaft.testing.engines import make_request, run_to_end
from tests.gpu.test_engine import check, compose_folder, cuda_recipe, folder_with_weights

pytestmark = pytest.mark.gpu

MODULAR = {"use": "modular"}
PLACES = ((0, 32), (48, 64), (112, 16), (300, 48))
CHOSEN = ((), (0, 2), (1,), (), (1, 3), (0, 1, 2, 3), (3,))


def answers(folder: str, changes: dict[str, Any]) -> tuple[dict[str, RequestOutput], Any]:
    engine = compose_folder(folder, changes)
    chance = random.Random(4)
    modules = [
        TokenSpan([chance.randrange(256) for _ in range(length)], position)
        for position, length in PLACES
    ]
    for number, chosen in enumerate(CHOSEN):
        own = [chance.randrange(256) for _ in range(1 + 7 * number)]
        request = make_request(f"p{number}", own, 24, ignore_eos=True, logprobs=2)
        request.spans = (*(modules[one] for one in chosen), *request.spans)
        engine.submit(request)
    return run_to_end(engine), engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder_with_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def wanted(folder: str) -> dict[str, RequestOutput]:
    return answers(folder, {"cache": {**MODULAR, "memory": "16MiB", "page_tokens": 16}})[0]


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("fused", [False, True], ids=["ops", "fused"])
def test_answers_equal_those_of_the_cpu(
    folder: str, wanted: dict[str, RequestOutput], graphs: bool, fused: bool
) -> None:
    attention = {"use": "triton", "fuse_prepare": fused, "prepare_in_decode": fused}
    changes: dict[str, Any] = {
        "attention": attention,
        "cache": MODULAR,
        "engine": {"graphs": graphs},
    }
    got, engine = answers(folder, cuda_recipe(**changes))
    check(got, wanted)
    if graphs:
        recorded = engine.parts.executor.graphs._recorded
        assert any(shifted for *_, shifted in recorded)
