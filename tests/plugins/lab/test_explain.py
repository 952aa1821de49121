"""`engine explain` on a toy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.checkpoint import random_checkpoint
from camshaft.cli import main
from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.lab import explain as module
from camshaft.plugins.lab.explain import Explain
from camshaft.plugins.lab.explanation import StepLimit
from camshaft.plugins.lab.rates import Rates
from camshaft.testing.command import CommandContract
from camshaft.testing.toy import LLAMA, pool, toy_mapping

TOY = str(Path(__file__).parents[3] / "recipes" / "toy.yaml")


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(1e10, 1e10, 1e11)
    monkeypatch.setattr(module, "measured_rates", lambda device, dtype: rates)


class TestContract(CommandContract):
    name = "explain"
    words = (TOY,)
    faulty = (("no-such-recipe.yaml",), (TOY, "--context", "0"), (TOY, "--set", "cache.memory=1"))

    def make(self) -> Command:
        return Explain(Settings())


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    mapping = toy_mapping(changes={"cache": {"memory": pool(100)}})
    path.write_text("\n".join(f"{name}: {json.dumps(part)}" for name, part in mapping.items()))
    return str(path)


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["explain", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_runs_and_where_it_was_chosen(capsys, recipe: str) -> None:
    found = explained(capsys, recipe, "--set", "cache.eviction=lfu")
    parts = {one["path"]: (one["use"], one["origin"]) for one in found["components"]}
    assert parts["cache"] == ("paged", f"{recipe}:4")
    assert parts["cache.eviction"] == ("lfu", "--set cache.eviction")
    assert parts["quant.kv"] == ("none", "default")
    assert found["values"]["cache.page_tokens"] == {"value": 4, "origin": f"{recipe}:4"}
    assert "engine.depth" not in found["values"]


def test_what_memory_holds(capsys, recipe: str) -> None:
    memory = explained(capsys, recipe)["memory"]
    assert (memory["pages"], memory["pool_tokens"], memory["room"]) == (100, 400, 400)
    assert memory["token_bytes"] == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width
    assert (memory["whole_requests"], memory["max_running"]) == (1, 8)


def test_the_least_time_of_a_decode_is_that_of_its_bytes(capsys, recipe: str) -> None:
    one, many, chunk = explained(capsys, recipe, "--context", "40")["steps"]
    assert (one["requests"], many["requests"]) == (1, 8)
    assert (one["context"], chunk["tokens"]) == (40, 64)
    config = random_checkpoint(LLAMA).config
    linears = config.layers * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48) + 32 * config.vocab
    bytes_of_weights_and_keys = 4 * linears + 40 * 256
    assert one["least_ms"] * 1e7 == pytest.approx(bytes_of_weights_and_keys, rel=0.15)
    assert one["bound"] == "memory"
    assert many["least_ms"] > one["least_ms"]
    assert many["most_tok_s"] > one["most_tok_s"]


def test_an_engine_without_a_model_has_no_limits(capsys, recipe: str) -> None:
    found = explained(capsys, recipe, "--set", "engine.executor=null")
    assert (found["rates"], found["steps"]) == (None, [])


def test_the_table_is_for_people(capsys, recipe: str) -> None:
    assert main(["explain", recipe]) == 0
    said = capsys.readouterr().out
    assert "weights: 0.2 MiB, 2 layers of 32 in float32" in said
    assert "1 request decodes, 399 tokens behind each" in said
    assert "at 10.0 GB/s and 0.10 Tflop/s" in said


def test_what_limits_a_step_is_what_takes_most_of_it() -> None:
    assert StepLimit(4, 1, 9, 0.002, 0.0015).as_mapping() == {
        "requests": 4, "tokens": 1, "context": 9,
        "least_ms": 2.0, "most_tok_s": 2000.0, "bound": "memory",
    }  # fmt: skip
    assert StepLimit(1, 64, 0, 0.002, 0.0005).as_mapping()["bound"] == "compute"
