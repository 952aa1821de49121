"""Every command and every call over HTTP that a page shows is run, or listed with the reason.

What a page says plainly of the real model is run on the toy: `REPLACED` says what stands in.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from camshaft.cli import main
from camshaft.testing.command import words_of
from tests.docs.reading import PAGES, ROOT, blocks, without_blocks

REPLACED = [
    (r"^engine (run|serve|bench|profile|explain) recipes/quickstart", r"engine \1 recipes/toy"),
    (r"^engine (tune) recipes/cuda", r"engine \1 recipes/toy"),
    (r"--port 8001", "--port 0"),
]

_PIP = "changes what is installed"
_MAKE = "takes minutes; tests/test_makefile.py reads its targets"
_CARD = "measures an accelerator; what it takes is compared with its help"
_PEERS = "measures beside other engines; what it takes is compared with its help"
_PACKAGE = "needs the example installed; tests/examples runs it so"
NOT_RUN = {
    "make serve": "installs, and downloads a model; what it calls is run here",
    "make serve TORCH_INDEX=ADDRESS": "installs, and downloads a model; what it calls is run here",
    "make test": _MAKE,
    "make setup": _PIP,
    "make link": _PIP,
    "make quick": _MAKE,
    "make check": _MAKE,
    "make kernels": _MAKE,
    "make kernels KERNELS=": _MAKE,
    "make fix": "changes the tree",
    "pip install ./examples/third_party_scheduler": _PACKAGE,
    "pip install 'camshaft[flashinfer]'": _PIP,
    "pip install flash-attn --no-build-isolation": _PIP,
    "pytest examples/third_party_scheduler/tests": _PACKAGE,
    "engine check recipes/quickstart.yaml --set scheduler=shortest_first": _PACKAGE,
    "engine serve recipes/toy.yaml --set scheduler=shortest_first": _PACKAGE,
    "engine profile benchmarks/recipes/llama-8b.yaml --workload mixed": _CARD,
    "engine tune benchmarks/recipes/llama-8b.yaml --tensor-parallel 8 --link-gbs 450 "
    "--decodes 960 --prompts 14 --prompt-tokens 512": _CARD,
    "python -m benchmarks.cpu --peers PYTHON --models FOLDER": _PEERS,
    "python -m venv ../peers": _PIP,
    "CMAKE_ARGS=-DGGML_NATIVE=ON ../peers/bin/pip install llama-cpp-python openvino-genai": _PIP,
    "../peers/bin/python -m benchmarks.peers.prepare llama.cpp MODEL.gguf ../peers/models": _PEERS,
    "python -m venv ../export": _PIP,
    "../export/bin/pip install torch gguf optimum-intel nncf openvino-tokenizers": _PIP,
    "../export/bin/python -m benchmarks.peers.prepare openvino MODEL.gguf ../peers/models": _PEERS,
    "python -m benchmarks.cpu --peers ../peers/bin/python --models ../peers/models": _PEERS,
    "python -m benchmarks.cuda --recipes qwen3-0.6b": _CARD,
    "python -m benchmarks.nano_batch": _CARD,
    "python -m benchmarks.online --set scheduler.step_tokens=4096": _CARD,
    "python -m benchmarks.quality --positions 1500": "takes minutes; its help is compared",
    "python -m benchmarks.startup --recipe llama-8b": _CARD,
    "python -m benchmarks.tiers_cuda": _CARD,
}

# Commands in running text: with what they work on, or they are only named there.
_INLINE = re.compile(
    r"`((?:make \w|pip install [^`]|python -m \w|pytest \w|engine\s+\w+\s+[\w./-]+\.yaml)[^`]*)`"
)


def sessions() -> list[list[str]]:
    """Return the commands of each block of the pages, without remarks, and single ones of the text.

    A command that stands in several places is in the first of them.
    """
    found: dict[str, None] = {}
    result = []
    for page in PAGES:
        texts = [block.replace("\\\n", " ").splitlines() for block in blocks(page, "sh")]
        texts += [[" ".join(text.split())] for text in _INLINE.findall(without_blocks(page))]
        for lines in texts:
            commands = [re.split(r" {2,}#", line)[0].strip() for line in lines]
            result.append([one for one in dict.fromkeys(commands) if one and one not in found])
            found |= dict.fromkeys(commands)
    return result


SESSIONS = sessions()
COMMANDS = [command for session in SESSIONS for command in session]
SERVING = [one for one in COMMANDS if one.startswith("engine serve") and one not in NOT_RUN]
CURLS = [one for one in COMMANDS if one.startswith("curl ")]
ENDING = [
    [one for one in session if one not in {*NOT_RUN, *SERVING, *CURLS}] for session in SESSIONS
]
LONG = ("engine profile", "engine tune")  # they measure what the machine can do


def replaced(command: str) -> list[str]:
    for what, by in REPLACED:
        command = re.sub(what, by, command)
    return shlex.split(command)


def test_what_is_not_run_is_still_in_the_pages() -> None:
    assert [one for one in NOT_RUN if one not in COMMANDS] == []


def test_all_others_are_calls_of_engine_and_of_curl() -> None:
    ending = [command for session in ENDING for command in session]
    assert [one for one in ending if not one.startswith("engine ")] == []
    assert SERVING
    assert CURLS


def parts(session: list[str]) -> list[Any]:
    """Return the parameters of a session: long commands are tests of their own."""
    short = [one for one in session if not one.startswith(LONG)]
    long = [[one] for one in session if one.startswith(LONG)]
    found = [pytest.param(short, id=short[0])] if short else []
    return found + [pytest.param(one, id=one[0], marks=pytest.mark.slow) for one in long]


@pytest.mark.timeout(180)  # some measure what the machine can do, which may be busy
@pytest.mark.parametrize("session", [part for session in ENDING for part in parts(session)])
def test_commands_that_end_do_what_they_should(
    session: list[str], beside_the_recipes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in session:
        check_run(command, capsys)


def check_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = replaced(command)
    words = words[1 : words.index(">")] if ">" in words else words[1:]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.strip()
    if "--json" in words or words[0] == "schema":
        json.loads(said)


def run_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)  # an earlier test may have imported it
    runpy.run_module(name, run_name="__main__")


@pytest.mark.parametrize("command", [one for one, why in NOT_RUN.items() if why in {_CARD, _PEERS}])
def test_what_measures_elsewhere_takes_what_the_page_gives_it(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(command)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [*words[2:], "--help"])
    with pytest.raises(SystemExit) as ended:
        main([*words[1:], "--help"]) if words[0] == "engine" else run_module(words[2], monkeypatch)
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert [one for one in words if one.startswith("--") and one not in told] == []


class Served:
    """`engine serve` as a process."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "camshaft", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    @cached_property
    def address(self) -> str:
        """Where it listens, once it is ready."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"ready: .* on (http://[\d.:]+),", line):
                return found[1]
        raise AssertionError(lines)

    def stop(self) -> int:
        """Ask it to stop; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=40)
        return self.process.returncode

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Served]]:
    """What every `engine serve` of the pages starts, all at once.

    The toy has the real model's name, and serves prompts out of modules.
    """
    changes = ["server.port=0", "model.name=smollm2-135m-instruct"]
    changes += ["cache.use=modular", "server.routes=[prompt_schemas]"]
    words = [word for one in changes for word in ("--set", one)]
    started = [Served(*replaced(one)[1:], *words) for one in SERVING]
    yield started
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def at(servers: list[Served]) -> str:
    return servers[0].address


@pytest.mark.slow
@pytest.mark.parametrize("command", CURLS)
def test_a_curl_gets_an_answer(command: str, at: str) -> None:
    words = shlex.split(command.replace("http://127.0.0.1:8000", at))
    done = subprocess.run([*words, "-s"], capture_output=True, timeout=30, check=True)
    assert json.loads(done.stdout)["usage"]["completion_tokens"] > 0


SNIPPETS = [one for page in PAGES for one in blocks(page, "python") if "127.0.0.1:8000" in one]


@pytest.mark.slow
@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: code.splitlines()[0])
def test_python_that_asks_the_server_gets_an_answer(code: str, at: str) -> None:
    names: dict[str, Any] = {}
    exec(code.replace("http://127.0.0.1:8000", at), names)
    answer = names["answer"]
    (names.get("server") or names["client"]).close()
    found = answer.json() if isinstance(answer, httpx.Response) else answer.to_dict()
    assert found["usage"]["completion_tokens"] > 0, found


@pytest.mark.slow
def test_an_error_reads_as_the_page_shows_it(at: str) -> None:
    [shown] = blocks(ROOT / "docs" / "api.md", "json")
    answer = httpx.post(f"{at}/v1/completions", json={"prompt": "a", "temperature": 3}, timeout=20)
    assert (answer.status_code, answer.json()) == (400, json.loads(shown))


@pytest.mark.slow
def test_what_serves_does_so_until_it_is_told_to_stop(servers: list[Served]) -> None:
    for one in servers:
        assert httpx.get(f"{one.address}/health", timeout=20).status_code == 200
    assert [one.stop() for one in servers] == [0] * len(SERVING)
