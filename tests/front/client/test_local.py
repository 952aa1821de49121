"""The client interface, on an engine in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from camshaft.client import EngineDiedError, LocalClient, Stream
from camshaft.errors import CheckpointError, RequestError
from camshaft.request import Request, SamplingParams, TokenSpan
from camshaft.testing.scripted import ScriptedEngine, Traits


def request(name: str, prompt: str = "abc", max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Request(id=name, spans=(TokenSpan(list(prompt.encode())),), params=params)


def spell(word: str):
    return lambda _: word.encode()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(spell("hello"), Traits(step_s=0.001))


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[LocalClient]:
    client = LocalClient(lambda: (engine, engine.traits.info))
    client.wait_ready()
    yield client
    client.close()


async def collect(client: LocalClient, one: Request) -> list[int]:
    return [token async for output in client.generate(one) for token in output.token_ids]


async def last_of(stream: Stream) -> None:
    async for _ in stream:
        pass


async def until(condition, within_s: float = 2.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_outputs_arrive_in_order_up_to_the_limit(client: LocalClient) -> None:
    assert bytes(await collect(client, request("a", max_tokens=4))) == b"hell"


async def test_an_engine_that_sleeps_wakes_for_what_a_thread_posts(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    for _ in range(2):
        ran = threading.Event()
        engine.clock.post(ran.set)
        assert await asyncio.to_thread(ran.wait, 5)


async def test_requests_run_side_by_side(client: LocalClient) -> None:
    answers = await asyncio.gather(*(collect(client, request(f"{i}")) for i in range(20)))
    assert answers == [list(b"hell")] * 20


async def test_a_stream_carries_several_requests_and_ends_with_the_last(
    client: LocalClient,
) -> None:
    lengths = {"a": 1, "b": 3}
    async with client.open([request(name, max_tokens=n) for name, n in lengths.items()]) as stream:
        outputs = [output async for output in stream]
    assert [one.id for one in outputs if one.finish] == ["a", "b"]
    assert sum(len(one.token_ids) for one in outputs) == 4


async def test_a_refusal_raises_with_its_field(client: LocalClient) -> None:
    with pytest.raises(RequestError, match="does not take") as caught:
        await collect(client, request("a", prompt=""))
    assert (caught.value.param, caught.value.status) == ("prompt", 400)
    assert client.open_requests == 0


async def test_an_id_in_use_is_refused_and_free_again_after_the_end(client: LocalClient) -> None:
    async with client.open([request("a", max_tokens=200)]):
        with pytest.raises(RequestError, match="'a' is in use"):
            client.open([request("a")])
    await until(lambda: client.open_requests == 0)
    assert await collect(client, request("a")) == list(b"hell")


async def test_leaving_an_iteration_early_aborts_the_request(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    outputs = client.generate(request("a", max_tokens=200))
    await anext(outputs)
    await outputs.aclose()
    await until(lambda: client.open_requests == 0)
    assert engine.stats.finished["abort"] == 1


async def test_cancelling_a_waiting_task_aborts_the_request(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    task = asyncio.create_task(collect(client, request("a", max_tokens=200)))
    await until(lambda: engine.stats.steps > 2)
    task.cancel()
    await until(lambda: engine.stats.finished["abort"] == 1)


async def test_an_abort_by_id_ends_the_stream_with_that_reason(client: LocalClient) -> None:
    async with client.open([request("a", max_tokens=200)]) as stream:
        await anext(stream)
        await client.abort("a")
        reasons = [output.finish async for output in stream]
    assert reasons[-1] == "abort"


async def test_a_stop_that_was_found_outside_counts_as_a_stop(
    client: LocalClient, engine: ScriptedEngine
) -> None:
    async with client.open([request("a", max_tokens=200)]) as stream:
        await anext(stream)
        stream.abort("a", "stop")
        assert [output async for output in stream] == []
    await until(lambda: engine.stats.finished["stop"] == 1)


async def test_an_idle_engine_does_not_turn(client: LocalClient, engine: ScriptedEngine) -> None:
    await collect(client, request("a"))
    before = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < 0.1
    assert await collect(client, request("b")) == list(b"hell")


async def test_a_snapshot_tells_queues_pages_and_counters(client: LocalClient) -> None:
    await collect(client, request("a"))
    idle = await client.snapshot()
    assert (idle.running, idle.waiting, idle.pools[0].in_use) == (0, 0, 0)
    assert (idle.counters["output_tokens"], idle.by_label["finished"]) == (4, {"length": 1})
    async with client.open([request("b", max_tokens=200)]) as stream:
        await anext(stream)
        busy = await client.snapshot()
    assert (busy.running, busy.pools[0].in_use) == (1, 1)


async def test_the_cache_can_be_dropped(client: LocalClient) -> None:
    await collect(client, request("a", prompt="p" * 40))
    assert await client.reset_cache() == 2


async def test_an_engine_that_raises_ends_every_stream_and_refuses_new_requests() -> None:
    def script(one: Request) -> Iterator[int]:
        if one.id == "bad":
            raise ValueError("broken component")
        yield from b"fine"

    engine = ScriptedEngine(script, Traits(step_s=0.01))
    client = LocalClient(lambda: (engine, engine.traits.info))
    others = asyncio.create_task(collect(client, request("good", max_tokens=200)))
    await until(lambda: engine.stats.steps > 0)
    with pytest.raises(EngineDiedError, match="ValueError: broken component"):
        await collect(client, request("bad"))
    with pytest.raises(EngineDiedError):
        await others
    with pytest.raises(EngineDiedError):
        client.open([request("later")])
    assert (client.state, client.healthy) == ("dead", False)
    await until(lambda: engine.closed)  # by its own thread, after the streams heard of it


async def test_a_fault_of_the_user_at_the_start_keeps_its_words() -> None:
    def build():
        raise CheckpointError("model.gguf: damaged")

    client = LocalClient(build)
    with pytest.raises(EngineDiedError, match=r"^model\.gguf: damaged$") as caught:
        await client.ready()
    assert caught.value.fixable


async def test_before_it_is_ready_it_says_what_it_is_doing() -> None:
    engine = ScriptedEngine()

    def build():
        time.sleep(0.2)
        return engine, engine.traits.info

    client = LocalClient(build)
    assert (client.state, client.healthy) == ("starting", False)
    with pytest.raises(RequestError, match="not ready"):
        _ = client.info
    assert (await client.ready()).model == "toy"
    client.close()


async def test_failing_all_open_requests_leaves_the_engine_running(client: LocalClient) -> None:
    async with client.open([request("a", max_tokens=200)]) as stream:
        await anext(stream)
        client.fail_open("the server is stopping")
        with pytest.raises(RequestError, match="stopping"):
            await last_of(stream)
    assert await collect(client, request("b")) == list(b"hell")


def test_clients_serve_event_loops_of_several_threads(client: LocalClient) -> None:
    answers = [asyncio.run(collect(client, request(f"{i}"))) for i in range(2)]
    assert answers == [list(b"hell")] * 2


async def test_closing_ends_open_requests_with_an_error(engine: ScriptedEngine) -> None:
    client = LocalClient(lambda: (engine, engine.traits.info))
    async with client.open([request("a", max_tokens=200)]) as stream:
        await anext(stream)
        await asyncio.to_thread(client.close)
        finishes = [output.finish async for output in stream]
    assert finishes[-1] == "error"
    assert engine.closed
