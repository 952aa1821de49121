"""The client that starts a dead engine anew, on scripted engines in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from camshaft.client import EngineDiedError, LocalClient, RestartingClient
from camshaft.errors import CheckpointError, RequestError
from camshaft.request import Request, SamplingParams, TokenSpan
from camshaft.testing.scripted import ScriptedEngine, letters

BAD = ord("!")


def request(name: str, token: int = 97, max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Request(id=name, spans=(TokenSpan([token]),), params=params)


def script(one: Request) -> Iterator[int]:
    if BAD in one.prompt_ids:
        raise ValueError("the script crashes")
    yield from letters(one)


class Starter:
    """Starts engines; those whose number is in `damaged` cannot be built."""

    def __init__(self, damaged: tuple[int, ...] = (), fixable: bool = True) -> None:
        self.engines: list[ScriptedEngine] = []
        self._damaged = damaged
        self._error = CheckpointError("a damaged file") if fixable else OSError("no device")

    def __call__(self) -> LocalClient:
        engine = ScriptedEngine(script)
        self.engines.append(engine)
        number = len(self.engines)

        def build() -> Any:
            if number in self._damaged:
                raise self._error
            return engine, engine.traits.info

        return LocalClient(build)


@pytest.fixture
def begin() -> Iterator[Callable[..., RestartingClient]]:
    made: list[RestartingClient] = []

    def begin(starter: Starter, most: int = 3, **options: Any) -> RestartingClient:
        made.append(RestartingClient(starter, most=most, **{"wait_s": 0.01, **options}))
        return made[-1]

    yield begin
    for one in made:
        one.close()


async def run(client: RestartingClient, one: Request) -> list[int]:
    return [id async for output in client.generate(one) for id in output.token_ids]


async def until_restarted(client: RestartingClient, times: int) -> None:
    await until(lambda: client.restarts == times and client.healthy)


async def kill(client: RestartingClient) -> None:
    with pytest.raises(EngineDiedError, match="the script crashes"):
        await run(client, request("bad", BAD))


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


async def test_a_dead_engine_is_followed_by_another_that_answers(begin) -> None:
    starter, said = Starter(), list[str]()
    client = begin(starter, progress=said.append, wait_s=0.05)
    info = await client.ready()
    first = await run(client, request("a"))
    await kill(client)
    assert client.state == "restarting"
    with pytest.raises((RequestError, EngineDiedError)):
        await run(client, request("b"))
    await until(lambda: client.state == "ready")
    assert await run(client, request("a")) == first
    assert (client.info, client.restarts, len(starter.engines)) == (info, 1, 2)
    assert starter.engines[0].closed
    assert said == [
        "the engine failed: ValueError: the script crashes; it is started again in 0.05 s (1 of 3)"
    ]


async def test_after_so_many_deaths_in_a_row_it_stays_dead(begin) -> None:
    client = begin(Starter(), most=2)
    await client.ready()
    for restarts in (1, 2):
        await kill(client)
        await until_restarted(client, restarts)
    await kill(client)
    error = await asyncio.wait_for(client.death(), 5)
    assert "the script crashes" in str(error)
    assert client.state == "dead"


async def test_an_engine_that_ran_for_long_begins_a_new_row(begin) -> None:
    client = begin(Starter(), most=1, forget_s=0.0)
    await client.ready()
    for restarts in (1, 2, 3):
        await kill(client)
        await until_restarted(client, restarts)


async def test_each_wait_is_twice_as_long_as_the_one_before(begin) -> None:
    said: list[str] = []
    client = begin(Starter(damaged=(2, 3), fixable=False), wait_s=0.02, progress=said.append)
    await client.ready()
    await kill(client)
    await until(lambda: client.healthy)
    assert [one.rpartition("again in ")[2] for one in said] == [
        "0.02 s (1 of 3)", "0.04 s (2 of 3)", "0.08 s (3 of 3)",
    ]  # fmt: skip


async def test_an_engine_that_never_was_ready_is_not_tried_again(begin) -> None:
    starter = Starter(damaged=(1,), fixable=False)
    client = begin(starter)
    with pytest.raises(EngineDiedError, match="no device"):
        await asyncio.wait_for(client.ready(), 5)
    assert (client.state, len(starter.engines)) == ("dead", 1)


async def test_a_fault_that_a_user_can_fix_ends_the_tries(begin) -> None:
    starter = Starter(damaged=(2,))
    client = begin(starter)
    await client.ready()
    await kill(client)
    assert (await asyncio.wait_for(client.death(), 5)).fixable
    assert len(starter.engines) == 2


async def test_closing_ends_a_wait_for_the_next_start(begin) -> None:
    starter = Starter()
    client = begin(starter, wait_s=60.0)
    await client.ready()
    await kill(client)
    await until(lambda: client.state == "restarting")
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 2
    assert (client.state, len(starter.engines)) == ("dead", 1)


async def test_what_is_asked_reaches_the_engine_that_runs_now(begin) -> None:
    starter = Starter()
    client = begin(starter)
    await client.ready()
    await kill(client)
    await until(lambda: client.healthy)
    async with client.open([request("long", max_tokens=200)]) as stream:
        await anext(stream)
        assert client.open_requests == 1
    await until(lambda: client.open_requests == 0)
    assert (await client.snapshot()).by_label["finished"] == {"abort": 1}
    assert await client.reset_cache() == 0
