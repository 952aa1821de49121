"""The client interface, on an engine in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from camshaft.client import Boot, EngineDiedError, RemoteClient, Stream
from camshaft.errors import RequestError
from camshaft.request import Request, SamplingParams, TokenSpan

pytestmark = pytest.mark.slow  # each starts a process

SCRIPTED = "camshaft.testing.scripted:build_scripted"


def request(name: str, prompt: str = "abc", max_tokens: int = 4) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Request(id=name, spans=(TokenSpan(list(prompt.encode())),), params=params)


def start(silence_s: float = 10.0, progress=lambda _: None, **argument) -> RemoteClient:
    boot = Boot(builder=SCRIPTED, argument=argument, heartbeat_s=0.05)
    return RemoteClient(boot, silence_s=silence_s, progress=progress)


@pytest.fixture
def client() -> Iterator[RemoteClient]:
    client = start(step_s=0.002, crash=ord("!"), silence_s=0.5)
    client.wait_ready(30)
    yield client
    client.close()


async def collect(client: RemoteClient, one: Request) -> list[int]:
    return [token async for output in client.generate(one) for token in output.token_ids]


async def last_of(stream: Stream) -> None:
    async for _ in stream:
        pass


async def until(condition, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def gone(process_id: int) -> bool:
    try:
        return bool(psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def test_requests_run_and_aborts_arrive(client: RemoteClient) -> None:
    answers = await asyncio.gather(*(collect(client, request(f"{i}")) for i in range(5)))
    assert answers == [answers[0]] * 5
    assert len(answers[0]) == 4
    async with client.open([request("long", max_tokens=200)]) as stream:
        await anext(stream)
    await until(lambda: client.open_requests == 0)
    snapshot = await client.snapshot()
    assert snapshot.by_label["finished"] == {"length": 5, "abort": 1}
    assert await client.reset_cache() == 0


async def test_a_refusal_crosses_with_its_field(client: RemoteClient) -> None:
    with pytest.raises(RequestError) as caught:
        await collect(client, request("a", prompt=""))
    assert caught.value.param == "prompt"


def test_the_sockets_lie_in_a_folder_of_this_user_alone(client: RemoteClient) -> None:
    folder = client._folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    client.close()
    assert not folder.exists()
    assert gone(client.process_id)


async def test_SRV_02_a_killed_engine_ends_streams_and_is_seen_at_once(
    client: RemoteClient,
) -> None:
    async with client.open([request("a", max_tokens=200)]) as stream:
        await anext(stream)
        os.kill(client.process_id, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match="signal 9"):
            await asyncio.wait_for(last_of(stream), 5)
    assert client.state == "dead"
    with pytest.raises(EngineDiedError):
        client.open([request("b")])


async def test_SRV_02_a_stopped_engine_is_silent_until_it_continues(client: RemoteClient) -> None:
    os.kill(client.process_id, signal.SIGSTOP)
    await until(lambda: client.state == "silent")
    os.kill(client.process_id, signal.SIGCONT)
    await until(lambda: client.state == "ready")
    assert len(await collect(client, request("a"))) == 4


async def test_an_engine_that_raises_says_why_before_it_ends(client: RemoteClient) -> None:
    with pytest.raises(EngineDiedError, match="the script crashes") as caught:
        await collect(client, request("a", prompt="bad!"))
    assert "Traceback" in caught.value.details
    await until(lambda: gone(client.process_id))


async def test_a_start_that_fails_keeps_the_words_of_the_fault() -> None:
    said: list[str] = []
    client = start(damaged="model.gguf: tensor 'x' is damaged", progress=said.append)
    with pytest.raises(EngineDiedError, match="^model.gguf: tensor 'x' is damaged$") as caught:
        await asyncio.wait_for(client.ready(), 30)
    assert caught.value.fixable
    assert said == ["setting the stage"]
    client.close()


def test_closing_during_the_start_does_not_wait_for_it() -> None:
    client = start()
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 2
    assert gone(client.process_id)


def test_closing_does_not_wait_for_an_engine_that_has_just_died(client: RemoteClient) -> None:
    os.kill(client.process_id, signal.SIGKILL)
    while not gone(client.process_id):
        time.sleep(0.01)
    time.sleep(0.05)  # its socket is gone as well, and nobody here has taken note yet
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 2


def test_an_engine_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from camshaft.client import Boot, RemoteClient\n"
        f"client = RemoteClient(Boot(builder={SCRIPTED!r}, argument={{}}))\n"
        "client.wait_ready(30)\n"
        "print(client.process_id, client._folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    engine, folder = parent.stdout.readline().decode().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while not gone(int(engine)) or Path(folder).exists():
        assert time.monotonic() < deadline, "the engine process is an orphan"
        time.sleep(0.02)
