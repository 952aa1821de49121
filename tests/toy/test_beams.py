"""Beams of a tiny random model equal those of transformers; their prefixes are shared."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from camshaft.client import EngineDiedError, LocalClient, build_engine, load_text_of
from camshaft.errors import RequestError
from camshaft.generate import Beams, Call, Generation
from camshaft.generate.llm import LLM
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.request import SamplingParams
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import pool, toy_mapping, toy_recipe
from tests.plugins.model.test_parity import reference_model
from tests.toy.test_transformers_parity import SHAPE

PROMPTS = [[7, 30, 99, 201], [(11 * n) % 251 for n in range(40)]]
ENDS = tuple(range(200, 230))
"""A random model rarely chooses one certain id; of so many it does now and then."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A model in transformers, and an engine on its files."""
    model = reference_model("Llama", **SHAPE)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    mapping = toy_mapping(changes={"cache": {"memory": pool(256, SHAPE)}})
    mapping["model"] = {"source": str(folder), "dtype": "float32"}
    recipe = parse_recipe(mapping, Registry.discover())
    client = LocalClient(lambda: build_engine(recipe))
    with LLM.on(client, load_text_of(recipe)) as llm:
        yield model, llm, client


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 9, "temperature": 0, "ignore_eos": True, **changes})


def searched(model: Any, prompt: list[int], width: int, ends: Any, **how: Any) -> list[list[int]]:
    """Return the ids that transformers finds, the best beam first."""
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=9,
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        eos_token_id=list(ends) or None,
        pad_token_id=319,
        **how,
    )
    return [[one for one in ids if one != 319] for ids in found[:, len(prompt) :].tolist()]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize(("width", "length_penalty"), [(2, 1.0), (3, 0.0), (4, -1.5), (6, 0.5)])
def test_they_are_those_of_transformers(
    made: Any, width: int, length_penalty: float, early_stopping: Any
) -> None:
    model, llm, _ = made
    beams = Beams(width, length_penalty, early_stopping)
    how = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    lengths = set()
    for ends in ENDS, ():
        asked = params(stop_token_ids=ends)
        found = llm.generate(PROMPTS, asked, width, beams=beams)
        for prompt, answers in zip(PROMPTS, found, strict=True):
            wanted = searched(model, prompt, width, ends, **how)
            assert [one.token_ids for one in answers.choices] == wanted
            lengths |= {len(one) for one in wanted}
    assert length_penalty > 0 or len(lengths) > 1, "some end before the limit"


def test_one_that_ended_says_so_and_the_best_are_told_with_their_logprobs(made: Any) -> None:
    _, llm, _ = made
    asked = params(stop_token_ids=ENDS, logprobs=2)
    [answers] = llm.generate(PROMPTS[:1], asked, 2, beams=Beams(4, 0.0))
    [every] = llm.generate(PROMPTS[:1], asked, 4, beams=Beams(4, 0.0))
    assert answers.choices == every.choices[:2]
    scores = [sum(one.chosen.logprob for one in choice.logprobs) for choice in every.choices]
    assert scores == sorted(scores, reverse=True)
    for one in every.choices:
        last = one.token_ids[-1]
        assert (one.finish, one.stop_reason) == (
            ("stop", last) if last in ENDS else ("length", None)
        )
        assert [len(report.top) for report in one.logprobs] == [2] * len(one.token_ids)
        assert [report.chosen.id for report in one.logprobs] == one.token_ids
    assert answers.usage.completion_tokens == sum(len(one.token_ids) for one in answers.choices)


def test_what_beams_have_in_common_is_computed_once(made: Any) -> None:
    _, llm, client = made

    def counted() -> dict[str, int]:
        found: dict[str, int] = asyncio.run(client.snapshot()).counters
        return found

    asyncio.run(client.reset_cache())
    before = counted()
    [answers] = llm.generate([PROMPTS[1]], params(), 4, beams=Beams(4))
    after = counted()
    assert answers.usage.cached_tokens == 0
    prompt_tokens, cached, steps = (
        after[name] - before[name] for name in ("prompt_tokens", "cached_tokens", "steps")
    )
    assert prompt_tokens == 40 + sum(4 * (40 + made_so_far) for made_so_far in range(1, 9))
    # a page has 4 tokens: what does not fill one is computed again, and nothing else
    assert cached == sum(4 * ((40 + made_so_far - 1) // 4 * 4) for made_so_far in range(1, 9))
    assert steps <= 18
    pools = asyncio.run(client.snapshot()).pools
    assert [(one.in_use, one.pinned) for one in pools] == [(0, 0)]


async def test_a_search_can_be_cancelled_between_two_tokens(made: Any) -> None:
    _, llm, client = made
    call = Call(prompts=PROMPTS, params=params(max_tokens=80), n=4, beams=Beams(4))
    generation = Generation(client, llm._text.tokenizer, call)
    task = asyncio.ensure_future(generation.choices())
    while not (await client.snapshot()).running:
        await asyncio.sleep(0)
    await generation.cancel()
    with pytest.raises(RequestError, match="the request was aborted"):
        await task
    while client.open_requests:
        await asyncio.sleep(0.001)
    assert (await client.snapshot()).pools[0].in_use == 0


async def test_a_caller_that_leaves_ends_it(made: Any) -> None:
    _, llm, client = made
    call = Call(prompts=PROMPTS, params=params(max_tokens=80), n=4, beams=Beams(4))
    task = asyncio.ensure_future(Generation(client, llm._text.tokenizer, call).choices())
    while not client.open_requests:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    while client.open_requests:
        await asyncio.sleep(0.001)
    assert (await client.snapshot()).pools[0].in_use == 0


def test_the_limit_of_the_context_ends_beams(made: Any) -> None:
    _, llm, _ = made
    [answers] = llm.generate([[5] * 125], params(), 2, beams=Beams(2))
    assert [len(one.token_ids) for one in answers.choices] == [3, 3]
    with pytest.raises(RequestError, match="holds at most 128 tokens"):
        llm.generate([[5] * 128], params(), 2, beams=Beams(2))


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("temperature", {"temperature": 0.5}),
        ("seed", {"seed": 1}),
        ("stop", {"stop": ("a",)}),
        ("logit_bias", {"logit_bias": {1: 2.0}}),
        ("min_tokens", {"min_tokens": 1}),
    ],
)
def test_what_would_change_the_probabilities_is_refused(
    made: Any, named: str, changes: dict[str, Any]
) -> None:
    _, llm, _ = made
    with pytest.raises(RequestError, match=f"^{named}: a beam search goes by"):
        llm.generate(PROMPTS, params(**changes), 2, beams=Beams(2))
    with pytest.raises(RequestError, match="n must be at least 1 and at most 2, not 3"):
        llm.generate(PROMPTS, params(), 3, beams=Beams(2))


async def test_an_engine_that_dies_ends_the_search(made: Any) -> None:
    _, llm, _ = made

    def dying() -> tuple[Any, Any]:
        engine, info = build_engine(toy_recipe())
        step, steps = engine.step, itertools.count()

        def counted() -> Any:
            if next(steps) == 5:
                raise RuntimeError("the device is gone")
            return step()

        engine.step = counted  # type: ignore[method-assign]
        return engine, info

    client = LocalClient(dying)
    await client.ready()
    call = Call(prompts=PROMPTS, params=params(), n=2, beams=Beams(2))
    with pytest.raises(EngineDiedError, match="the device is gone"):
        await Generation(client, llm._text.tokenizer, call).choices()
    client.close()
