"""Calls with several prompts and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from camshaft.client import LocalClient
from camshaft.errors import RequestError
from camshaft.generate import Call, Generation
from camshaft.request import CacheScope, Request, SamplingParams
from camshaft.testing.scripted import ScriptedEngine, ScriptError, Traits, letters
from camshaft.testing.text import byte_tokenizer


def script(request: Request) -> Iterator[int]:
    if request.prompt_ids == list(b"fault"):
        yield from b"ab"
        raise ScriptError("logits are not finite")
    if request.prompt_ids[:4] == list(b"echo"):
        yield from request.prompt_ids[4:]
    yield from letters(request)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(script, Traits(max_running=4))


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[LocalClient]:
    client = LocalClient(lambda: (engine, engine.traits.info))
    client.wait_ready()
    yield client
    client.close()


def generation(client: LocalClient, *prompts: str, n: int = 1, **params) -> Generation:
    ids = [list(prompt.encode()) for prompt in prompts]
    chosen = SamplingParams(**{"max_tokens": 5, **params})
    return Generation(client, byte_tokenizer(), Call(prompts=ids, params=chosen, n=n))


async def test_SMP_09_every_prompt_gets_its_n_answers_in_order(client: LocalClient) -> None:
    run = generation(client, "echoA", "echoBB", "echoCCC", n=2, seed=3)
    choices = await run.choices()
    assert [one.index for one in choices] == [0, 1, 2, 3, 4, 5]
    assert [one.text[0] for one in choices] == ["A", "A", "B", "B", "C", "C"]
    assert {one.finish for one in choices} == {"length"}
    assert run.usage.prompt_tokens == 5 + 6 + 7
    assert run.usage.completion_tokens == 6 * 5


async def test_SMP_09_a_seed_gives_n_different_answers_and_the_same_ones_again(
    client: LocalClient,
) -> None:
    first = [one.text for one in await generation(client, "a", n=8, seed=3).choices()]
    again = [one.text for one in await generation(client, "a", n=8, seed=3).choices()]
    assert len(set(first)) == 8
    assert again == first
    [second] = await generation(client, "a", seed=4).choices()
    assert second.text == first[1]


async def test_seeds_wrap_around_at_64_bits(client: LocalClient, engine: ScriptedEngine) -> None:
    await generation(client, "a", n=2, seed=2**64 - 1).choices()
    assert [one.params.seed for one in engine.submitted] == [2**64 - 1, 0]


async def test_joined_deltas_are_the_whole_answers(client: LocalClient) -> None:
    whole = await generation(client, "a", "b", n=2, seed=1, max_tokens=20).choices()
    joined = dict.fromkeys(range(4), "")
    async with aclosing(generation(client, "a", "b", n=2, seed=1, max_tokens=20).deltas()) as run:
        async for delta in run:
            joined[delta.index] += delta.text
    assert list(joined.values()) == [one.text for one in whole]


async def test_a_stop_string_ends_its_choice_alone_and_frees_the_engine(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    engine.traits = replace(engine.traits, step_s=0.05)  # word of the stop takes its time
    run = generation(client, "echoone.two", "echo123456", max_tokens=8, stop=(".",))
    choices = await run.choices()
    assert (choices[0].text, choices[0].finish) == ("one", "stop")
    assert bytes(choices[0].token_ids) == b"one."
    assert (choices[1].finish, len(choices[1].token_ids)) == ("length", 8)
    assert run.usage.completion_tokens == 4 + 8
    assert engine.stats.finished == {"stop": 1, "length": 1}


async def test_cached_tokens_are_those_of_the_first_answer_to_each_prompt(
    client: LocalClient,
) -> None:
    cold, warm = (generation(client, "p" * 33, n=3) for _ in range(2))
    await cold.choices()
    await warm.choices()
    assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 32)


async def test_a_failing_answer_fails_the_call_and_aborts_the_others(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    with pytest.raises(RequestError, match="not finite") as caught:
        await generation(client, "fault", "fine", max_tokens=200).choices()
    assert caught.value.status == 500
    while client.open_requests:
        await asyncio.sleep(0.005)
    assert engine.stats.finished == {"error": 1, "abort": 1}


async def test_leaving_early_aborts_all_answers(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    async with aclosing(generation(client, "a", n=3, max_tokens=200).deltas()) as run:
        await anext(run)
    while client.open_requests:
        await asyncio.sleep(0.005)
    assert engine.stats.finished == {"abort": 3}


async def test_prompt_salt_and_priority_reach_the_engine(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    params = SamplingParams(max_tokens=1)
    scope = CacheScope("news", 4, 60.0)
    call = Call(prompts=[[5, 6]], params=params, salt="tenant", scope=scope, priority=-3)
    await Generation(client, byte_tokenizer(), call).choices()
    [request] = engine.submitted
    assert (request.prompt_ids, request.salt, request.priority) == ([5, 6], "tenant", -3)
    assert request.scope == scope
