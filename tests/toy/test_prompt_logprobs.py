"""Logprobs of prompts are those of a plain forward pass, whatever the engine does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from camshaft.errors import RequestError
from camshaft.request import RequestOutput, TokenLogprobs, TokenSpan
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import compose_toy, pool
from tests.plugins.model.test_parity import reference_model
from tests.toy.test_transformers_parity import SHAPE, compose_folder

TOP = 3
MODES: dict[str, dict[str, Any]] = {
    "in one piece": {},
    "chunked": {"scheduler": {"step_tokens": 6}},
    "late by one": {"engine": {"depth": 1, "executor": {"use": "late", "late_steps": 1}}},
    "late by two": {
        "engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}},
        "scheduler": {"step_tokens": 7},
    },
    "preempted": {"cache": {"memory": pool(14, SHAPE)}, "scheduler": {"step_tokens": 8}},
    "radix": {"cache": {"use": "radix"}},
    "a token a page": {"cache": {"use": "token_table", "page_tokens": 1}},
    "tiered": {
        "cache": {
            "use": "tiered",
            "tiers": [{"use": "memory", "capacity": "64KiB"}],
            "threads": 0,
            "memory": pool(20, SHAPE),
        }
    },
}


def prompts() -> list[list[int]]:
    """Some begin alike; one has a single token, of which there is nothing to report."""
    chance = random.Random(5)
    common = [chance.randrange(256) for _ in range(13)]
    tails = [[chance.randrange(256) for _ in range(length)] for length in (8, 1, 20)]
    return [[7], *([*common, *tail] for tail in tails), common[:9]]


PROMPT = prompts()[3]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model, and its log-probabilities [T, V] at every place of every prompt."""
    model = reference_model("Llama", **SHAPE)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    with torch.inference_mode():
        logits = [model(torch.tensor([prompt])).logits[0] for prompt in prompts()]
    return folder, [one.double().log_softmax(dim=1) for one in logits]


def check(found: list[TokenLogprobs], prompt: list[int], expected: torch.Tensor) -> None:
    assert len(found) == len(prompt) - 1
    for place, one in enumerate(found):
        row, token = expected[place], prompt[place + 1]
        best = row.topk(TOP)
        assert one.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert one.rank == 1 + int((row > row[token] + 1e-6).sum())
        assert one.top_ids == best.indices.tolist()
        assert one.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_they_are_those_of_a_plain_forward(family: Any, mode: str) -> None:
    folder, expected = family
    engine = compose_folder(folder, MODES[mode])
    for turn in range(2):  # the second finds its prompts in the cache, and computes them
        for number, prompt in enumerate(prompts()):
            name = f"{turn}.{number}"
            engine.submit(make_request(name, prompt, 6, prompt_logprobs=TOP, ignore_eos=True))
        results = run_to_end(engine)
        for number, prompt in enumerate(prompts()):
            check(results[f"{turn}.{number}"].prompt_logprobs, prompt, expected[number])
            assert results[f"{turn}.{number}"].cached_tokens == 0
    if mode == "preempted":
        assert engine.stats.preemptions.total() > 0


def toy_reads(changes: dict[str, Any], at: tuple[int, ...] = (), how: Any = "recompute") -> Any:
    """Return what a toy reports of a prompt that is preempted once so many tokens are computed."""
    engine = compose_toy(changes=changes).engine
    engine.submit(make_request("a", PROMPT, 3, prompt_logprobs=2, ignore_eos=True))
    joined: dict[str, RequestOutput] = {}
    marks = list(at)
    while engine.has_work:
        state = engine.states.get("a")
        if marks and state is not None and marks[0] <= state.computed < len(PROMPT):
            marks.pop(0)
            engine.committer.preempt(state, "planned", how)
        collect(engine.step(), joined)
    assert engine.stats.preemptions.total() == len(at)
    assert (engine.stats.swaps.total() > 0) == (how == "swap")
    engine.close()
    return joined["a"]


@pytest.mark.parametrize("how", ["recompute", "recompute without a cache", "swap"])
@pytest.mark.parametrize("late", [0, 2])
def test_a_prompt_that_is_preempted_halfway_is_reported_once(late: int, how: str) -> None:
    whole = toy_reads({})
    changes: dict[str, Any] = {"scheduler": {"step_tokens": 5}}
    if late:
        changes["engine"] = {"depth": late, "executor": {"use": "late", "late_steps": late}}
    if how == "swap":
        tiers = [{"use": "memory", "capacity": "64KiB"}]
        changes["cache"] = {"use": "tiered", "tiers": tiers, "load": "always", "threads": 0}
    elif how != "recompute":
        changes["cache"] = {"prefix": False}
    found = toy_reads(changes, (5, 10, 25), how.partition(" ")[0])
    assert found.token_ids == whole.token_ids
    assert [one.top_ids for one in found.prompt_logprobs] == [
        one.top_ids for one in whole.prompt_logprobs
    ]
    values = [one.logprob for one in found.prompt_logprobs]
    assert values == pytest.approx([one.logprob for one in whole.prompt_logprobs], abs=1e-5)


def test_a_long_chunk_goes_through_the_head_in_parts() -> None:
    prompt = [(7 * one) % 256 for one in range(60)]
    engine = compose_toy().engine
    model: Any = engine.parts.executor.parts.model  # type: ignore[attr-defined]
    sizes, logits = [], model.logits

    def noted(hidden: torch.Tensor, step: Any) -> Any:
        sizes.append(len(hidden))
        return logits(hidden, step)

    model.logits = noted
    engine.submit(make_request("a", prompt, 1, prompt_logprobs=0))
    result = run_to_end(engine)["a"]
    assert sizes == [16, 16, 16, 11, 1]
    assert len(result.prompt_logprobs) == 59
    assert all(one.top_ids == [] for one in result.prompt_logprobs)


def test_a_prompt_whose_logits_are_not_finite_ends_with_an_error() -> None:
    engine = compose_toy().engine
    model: Any = engine.parts.executor.parts.model  # type: ignore[attr-defined]
    logits = model.logits

    def broken(hidden: torch.Tensor, step: Any) -> Any:
        found = logits(hidden, step)
        if len(found) == 3:  # of the prompt
            found[1, 4] = torch.nan
        return found

    model.logits = broken
    engine.submit(make_request("bad", [5, 6, 7, 8], 2, prompt_logprobs=1, ignore_eos=True))
    engine.submit(make_request("good", [5, 6], 2, ignore_eos=True))
    results = run_to_end(engine)
    assert (results["bad"].finish, results["good"].finish) == ("error", "length")
    assert "not finite" in results["bad"].message


def test_a_prompt_with_modules_has_no_logprobs() -> None:
    engine = compose_toy(changes={"cache": {"use": "modular"}}).engine
    request = make_request("a", [1, 2], 2, prompt_logprobs=1)
    request.spans = (TokenSpan([1, 2, 3, 4], 0), *request.spans)
    with pytest.raises(RequestError, match="modules"):
        engine.submit(request)
