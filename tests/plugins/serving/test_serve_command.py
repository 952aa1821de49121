"""`engine serve` as a process, with a scripted engine in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from camshaft.testing.toy import toy_mapping

pytestmark = pytest.mark.slow  # each starts two or three processes

# The command as it is, but for what the engine process builds.
DRIVER = """
import json, sys
from camshaft.cli import main
from camshaft.client import Boot
traits = json.loads(sys.argv.pop(1))
script = "camshaft.testing.scripted:build_scripted"
told = dict(builder=script, argument=traits, heartbeat_s=0.1)
Boot.of = classmethod(lambda cls, recipe, trace=None: cls(**told))
sys.exit(main(sys.argv[1:]))
"""


class Served:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""

    def wait_for(self, word: str) -> str:
        """Read lines up to one with a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if word in line:
                return line
        raise AssertionError(f"no line with '{word}' in {self.lines}")

    def ready(self) -> str:
        """Wait for the ready line; return the example to paste."""
        match = re.search(r"http://[\d.]+:\d+", self.wait_for("ready: "))
        assert match is not None
        self.url = match[0]
        return self.wait_for("curl")

    def listens(self) -> str:
        """Wait until it listens, which is long before it is ready; return where."""
        own = psutil.Process(self.process.pid)
        until(lambda: any(one.status == psutil.CONN_LISTEN for one in own.net_connections("tcp")))
        [port] = [one.laddr.port for one in own.net_connections("tcp") if not one.raddr]
        self.url = f"http://127.0.0.1:{port}"
        return self.url

    def refuses(self) -> bool:
        """Whether it takes no connection any more."""
        try:
            httpx.get(f"{self.url}/health", timeout=20)
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
            return True
        return False

    def ended(self, within_s: float = 30) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(within_s)
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return code

    def engine(self) -> psutil.Process:
        [child] = psutil.Process(self.process.pid).children()
        return child

    @contextmanager
    def stream(self, max_tokens: int) -> Iterator[Iterator[str]]:
        body = {"prompt": "x", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=20) as response:
            yield response.iter_lines()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(json.dumps(toy_mapping(changes={"server": {"port": 0, "linger_s": 1}})))
    return path


@pytest.fixture
def start(recipe: Path) -> Iterator[Any]:
    started: list[Served] = []

    def start(*arguments: str, **traits: Any) -> Served:
        command = [sys.executable, "-P", "-c", DRIVER, json.dumps({"vocab": 320, **traits})]
        process = subprocess.Popen(
            [*command, "serve", str(recipe), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        started.append(Served(process))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


def test_it_tells_its_progress_and_a_line_that_works_and_stops_without_an_orphan(start) -> None:
    served = start()
    words = shlex.split(served.ready())
    assert words[:2] == ["curl", f"{served.url}/v1/chat/completions"]
    response = httpx.post(words[1], json=json.loads(words[-1]), timeout=20)
    assert response.status_code == 200
    assert any("setting the stage" in line for line in served.lines)
    engine = served.engine()
    served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0
    assert not engine.is_running()
    with socket.create_server(("127.0.0.1", int(served.url.rpartition(":")[2]))):
        pass  # the port is free again


def test_SRV_02_health_is_503_until_a_completion_works(start) -> None:
    served = start(start_s=1.0)
    url = served.listens()
    states = []
    while "ok" not in states:
        response = httpx.get(f"{url}/health", timeout=20)
        states.append(response.json()["status"])
        assert response.status_code == (200 if states[-1] == "ok" else 503)
        time.sleep(0.05)
    assert states[0] == "starting"
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=20)
    assert answer.status_code == 200


def test_SRV_03_running_answers_finish_after_a_signal(start) -> None:
    served = start(step_s=0.02)
    served.ready()
    with served.stream(60) as lines:
        next(lines)
        served.engine().terminate()  # as service managers do, who tell every process
        served.process.send_signal(signal.SIGTERM)
        until(served.refuses)
        data = [line for line in lines if line]
    assert data[-1] == "data: [DONE]"
    assert len(data) == 60
    assert served.ended() == 0


@pytest.mark.parametrize("again", [True, False])
def test_SRV_03_a_second_signal_or_the_time_ends_them_with_an_error(start, again: bool) -> None:
    served = start("--set", f"server.shutdown_s={30 if again else 0.5}", step_s=0.02, room=5000)
    served.ready()
    with served.stream(4000) as lines:
        next(lines)
        served.process.send_signal(signal.SIGINT)
        until(served.refuses)  # two signals at once would be one
        if again:
            served.process.send_signal(signal.SIGINT)
        data = [line for line in lines if line]
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == "stopping"
    assert served.ended() == 0


def test_SRV_02_when_the_engine_is_killed_streams_end_and_the_server_exits(start) -> None:
    changes = ("--set", "server.restarts=0", "--set", "server.linger_s=3")  # for two requests
    served = start(*changes, step_s=0.02, room=5000)
    served.ready()
    with served.stream(4000) as lines:
        next(lines)
        served.engine().kill()
        data = [line for line in lines if line]
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert httpx.get(f"{served.url}/health").json()["status"] == "dead"
    assert httpx.post(f"{served.url}/v1/completions", json={"prompt": "a"}).status_code == 503
    assert served.ended() == 3


def test_SRV_02_an_engine_that_is_killed_is_started_anew(start) -> None:
    served = start(step_s=0.02, room=5000)
    served.ready()
    with served.stream(4000) as lines:
        next(lines)
        first = served.engine()
        first.kill()
        killed_at = time.monotonic()
        data = [line for line in lines if line]
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
    health = httpx.get(f"{served.url}/health")
    assert time.monotonic() - killed_at < 3  # it is seen at once; the rest is a busy machine's
    assert (health.status_code, health.json()["status"]) == (503, "restarting")
    refused = httpx.post(f"{served.url}/v1/completions", json={"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "restarting")
    assert int(refused.headers["retry-after"]) > 0
    while httpx.get(f"{served.url}/health", timeout=5).status_code != 200:
        time.sleep(0.05)
    answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "a"}, timeout=20)
    assert answer.status_code == 200
    assert "camshaft_engine_restarts_total 1.0" in httpx.get(f"{served.url}/metrics").text
    second = served.engine()
    served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0
    assert gone(first)
    assert gone(second)


def test_SRV_02_a_killed_server_leaves_no_engine_and_no_sockets(start) -> None:
    served = start(step_s=0.02, room=5000)
    served.ready()
    engine = served.engine()
    sockets = [Path(one.laddr) for one in engine.net_connections("unix") if one.laddr]
    folders = {one.parent for one in sockets if one.name in {"commands", "replies"}}
    assert [one for one in folders if one.exists()]
    with served.stream(4000) as lines:
        next(lines)
        served.process.kill()
        until(lambda: gone(engine))
    assert [one for one in folders if one.exists()] == []


def gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # nobody reaps it in a container
    except psutil.NoSuchProcess:
        return True


def test_a_port_in_use_is_an_error_before_anything_is_loaded(start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = start("--port", str(port))
        assert served.ended() == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in served.lines[-1]
    assert len(served.lines) == 1


def test_an_engine_that_cannot_start_ends_the_server_with_its_words(start) -> None:
    served = start(damaged="model.gguf: tensor 'x' is damaged")
    assert served.ended() == 1
    assert served.lines[-1] == "model.gguf: tensor 'x' is damaged\n"
    assert not any("Traceback" in line for line in served.lines)


def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    """Wait for something that happens soon, unless the machine has other things to do."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
