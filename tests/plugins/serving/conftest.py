"""Servers on scripted engines: real ones, on a port of this machine, each in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from camshaft.client import LocalClient, Snapshot, build_engine, load_text_of
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.keys import Keys
from camshaft.plugins.serving.server import HttpServer, bind
from camshaft.plugins.serving.service import Service
from camshaft.recipe import ServerSection
from camshaft.request import Request
from camshaft.testing.scripted import Script, ScriptedEngine, ScriptError, Traits, letters
from camshaft.testing.text import byte_text
from camshaft.testing.toy import toy_recipe
from camshaft.text import TextModel


def script(request: Request) -> Iterator[int]:
    """`echo TEXT` gets TEXT and the end of turn; `BOOM` a fault after three; others letters."""
    prompt = bytes(one for one in request.prompt_ids if one < 256)
    if prompt.startswith(b"echo "):
        yield from prompt.removeprefix(b"echo ")
        yield 258
    if prompt.startswith(b"BOOM"):
        yield from b"abc"
        raise ScriptError("the sampler failed")
    yield from letters(request)


@dataclass
class Running:
    """A server that runs."""

    engine: Any
    client: LocalClient
    service: Service
    port: int
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt: Any = "Hello", **body: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, **body})

    def chat(self, content: Any = "Hi", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.http.post("/v1/chat/completions", json={"messages": messages, **body})

    def snapshot(self) -> Snapshot:
        return asyncio.run(self.client.snapshot())

    def alive(self) -> bool:
        """Whether it is healthy, answers, and holds no pages."""
        answer = self.complete("echo canary", max_tokens=20).json()
        return (
            self.http.get("/health").status_code == 200
            and answer["choices"][0]["text"] == "canary"
            and self.snapshot().pools[0].in_use == 0
        )


def events(response: httpx.Response) -> list[Any]:
    """Return the events of a stream, parsed; the last must be [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def joined(chunks: list[Any], index: int = 0) -> str:
    """Return the text of one choice of a stream."""
    choices = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
    return "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in choices)


def until(condition: Callable[[], bool], within_s: float = 3.0) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def run_one(
    script: Script = script,
    text: TextModel | None = None,
    settings: dict[str, Any] | None = None,
    **traits: Any,
) -> Iterator[Running]:
    """Yield a running server on a scripted engine; stop it afterwards."""
    engine = ScriptedEngine(script, Traits(**traits))
    client = LocalClient(lambda: (engine, engine.traits.info))
    section = ServerSection(**(settings or {}))
    yield from run_on(client, text or byte_text(), section, engine.traits.max_running, engine)


def run_toy(changes: dict[str, dict[str, Any]]) -> Iterator[Running]:
    """Yield a running server on a toy model with random weights."""
    recipe = toy_recipe(changes=changes)
    client = LocalClient(lambda: build_engine(recipe))
    slots = recipe.scheduler.max_running
    yield from run_on(client, load_text_of(recipe), recipe.server, slots)


def run_on(
    client: LocalClient,
    text: TextModel,
    settings: ServerSection,
    slots: int,
    engine: Any = None,
) -> Iterator[Running]:
    client.wait_ready()
    keys = None if settings.api_keys is None else Keys.of_file(settings.api_keys)
    service = Service(client, settings, max_running=slots, keys=keys)
    service.start(text)
    bound = bind("127.0.0.1", 0)
    server = HttpServer(create_app(service), settings.model_copy(update={"shutdown_s": 1.0}))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
    thread.start()
    running = Running(engine, client, service, bound.getsockname()[1])
    yield running
    running.http.close()
    server.should_exit = True
    thread.join()
    client.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Start servers with scripts, traits or settings of the test's own."""
    yield from starter(run_one)


@pytest.fixture
def serve_toy() -> Iterator[Callable[..., Running]]:
    """Start servers on toy models, with changes to their recipe."""
    yield from starter(run_toy)


@pytest.fixture
def toy_server() -> Callable[..., AbstractContextManager[Running]]:
    """Serve a toy model, with changes to its recipe, for as long as a block lasts."""
    return contextmanager(run_toy)


def starter(run: Callable[..., Iterator[Running]]) -> Iterator[Callable[..., Running]]:
    """Yield what starts a server; stop all that it started afterwards."""
    started: list[Iterator[Running]] = []

    def start(*args: Any, **options: Any) -> Running:
        started.append(run(*args, **options))
        return next(started[-1])

    yield start
    for one in started:
        next(one, None)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server for all tests of a module."""
    yield from run_one()


class Raw:
    """A connection that sends whatever it is told."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response: status, headers, body."""
        reader = self.socket.makefile("rb")
        status = int(reader.readline().split()[1])
        headers = {}
        while line := reader.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = reader.read(int(headers["content-length"]))
        return status, headers, body

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def raw() -> Iterator[Callable[[Running], Raw]]:
    """Open raw connections to a server."""
    opened: list[Raw] = []

    def connect(server: Running) -> Raw:
        opened.append(Raw(server.port))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


# Helpers of this file are fixtures, for tests cannot import it.
@pytest.fixture(name="events", scope="session")
def events_helper() -> Callable[..., Any]:
    return events


@pytest.fixture(name="joined", scope="session")
def joined_helper() -> Callable[..., Any]:
    return joined


@pytest.fixture(name="until", scope="session")
def until_helper() -> Callable[..., Any]:
    return until
