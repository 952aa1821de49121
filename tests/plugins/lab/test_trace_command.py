"""`engine run --trace` and `engine trace`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli import main
from camshaft.component import Settings
from camshaft.executor.trace_files import TracedRow, TraceHead, write_trace
from camshaft.plugins.lab.trace_command import Trace
from camshaft.testing.command import CommandContract
from camshaft.testing.toy import toy_mapping


class TestContract(CommandContract):
    name = "trace"
    faulty = (("show", "no-such-folder"), ("rerun", "no-such-folder"))

    def make(self) -> Trace:
        return Trace(Settings())


@pytest.fixture(autouse=True, scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep a step that the contract can call the command with."""
    folder = tmp_path_factory.mktemp("traces") / "step"
    head = TraceHead(
        reason="it was asked for",
        step=1,
        versions={},
        device="toy",
        recipe_name="toy.yaml",
        recipe={},
        page_tokens=4,
        pages=[1],
        longest_table=1,
        layouts=[],
        rows=[TracedRow(slot=0, context=0, tokens=1, chosen=[5])],
    )
    write_trace(folder, head, {})
    TestContract.words = ("show", str(folder))


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    path.write_text(json.dumps(toy_mapping()))
    return str(path)


def test_a_step_is_kept_shown_and_run_again(recipe: str, tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "step")
    run = ["run", recipe, "--prompt", "Hello", "--max-tokens", "4", "--json", "--trace", folder]
    assert main([*run, "--trace-step", "3"]) == 0
    ids = json.loads(capsys.readouterr().out)["token_ids"]
    assert main(["trace", "show", folder]) == 0
    shown = capsys.readouterr().out
    assert f"slot 0: 1 tokens behind 6, chose [{ids[2]}]" in shown
    other = ["--set", "attention=sdpa", "--set", "engine.deterministic=false"]
    for more in [], ["--plain"], other:
        assert main(["trace", "rerun", folder, *more]) == 0
        told = capsys.readouterr().out
        assert told.count("attended") == 2
        assert "tokens agree in all 1 requests" in told
    assert main(run) == 1
    assert "step holds a trace already; name another folder" in capsys.readouterr().err


def test_what_differs_is_told_and_is_the_exit_code(
    recipe: str, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "step"
    run = ["run", recipe, "--prompt", "Hello", "--max-tokens", "2", "--json"]
    assert main([*run, "--trace", str(folder)]) == 0
    capsys.readouterr()
    # other weights, as after a fault
    assert main(["trace", "rerun", str(folder), "--set", "model.seed=5"]) == 1
    told = capsys.readouterr().out
    assert "tokens differ in 1 of 1 requests" in told
    assert "then, " in told


def test_a_step_is_a_number_or_the_failed_one(recipe: str, capsys: Any) -> None:
    for wrong in "0", "-1", "last":
        with pytest.raises(SystemExit):
            main(["run", recipe, "--prompt", "a", "--trace", "x", "--trace-step", wrong])
        assert f"'{wrong}' is neither a number from 1 nor 'failed'" in capsys.readouterr().err
