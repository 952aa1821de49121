"""`engine tune` on a toy: what it measures, what it says, and what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from camshaft import Registry, load_recipe
from camshaft.cli import main
from camshaft.component import Settings
from camshaft.compose import compose
from camshaft.contracts.command import Command
from camshaft.plugins.lab.rates import Rates
from camshaft.plugins.lab.tune import Tune
from camshaft.plugins.lab.tuning import measuring
from camshaft.plugins.lab.tuning.costs import Mix
from camshaft.plugins.lab.tuning.measuring import Subject
from camshaft.plugins.lab.tuning.search import Tuned
from camshaft.plugins.lab.tuning.splits import Split
from camshaft.plugins.lab.tuning.steps import Load, step_of
from camshaft.testing.command import CommandContract

TOY = str(Path(__file__).parents[3] / "recipes" / "toy.yaml")
SMALL = ("--decodes", "2", "--context", "8", "--prompts", "1", "--prompt-tokens", "16")


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(1e10, 1e10, 1e11)
    monkeypatch.setattr(measuring, "measured_rates", lambda device, dtype: rates)


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["tune", TOY, *SMALL, "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


class TestContract(CommandContract):
    name = "tune"
    words = (TOY, *SMALL)
    faulty = (
        ("no-such-recipe.yaml",),
        (TOY, *SMALL, "--decodes", "100"),
        (TOY, *SMALL, "--decodes", "1", "--prompts", "0"),
        (TOY, *SMALL, "--link-gbs", "0"),
        (TOY, *SMALL, "--write", "/tmp/elsewhere.yaml"),
        (TOY, *SMALL, "--set", "engine.executor=null"),
        (TOY, *SMALL, "--tensor-parallel", "3"),
    )

    def make(self) -> Command:
        return Tune(Settings())


def test_operations_are_measured_and_no_gain_is_claimed_where_all_runs_in_order(capsys) -> None:
    report = tune(capsys)
    assert (report["tokens"], report["overlap"], report["ranks"]) == (18, 0.0, 1)
    names = [one["operation"] for one in report["operations"]]
    assert names == ["qkv", "decode", "prefill", "out", "gate_up", "down", "ends"]
    assert all(one["ms"] > 0 for one in report["operations"])
    assert all(one["compute"] or one["memory"] for one in report["operations"])
    assert report["one batch"]["ms"] == pytest.approx(
        sum(one["ms"] for one in report["operations"]), abs=0.01
    )
    assert report["minimum_tokens"] is None


def test_several_devices_send_what_the_link_takes(capsys) -> None:
    report = tune(capsys, "--tensor-parallel", "2", "--link-gbs", "1e-3", "--link-us", "0")
    reduce = next(one for one in report["operations"] if one["operation"] == "all-reduce")
    # 18 tokens of 32 numbers of 4 bytes, twice in each of 2 layers, at 1 MB/s
    assert reduce["ms"] == pytest.approx(18 * 32 * 4 * 2 * 2 / 1e6 * 1e3)
    assert report["one batch"]["busy_ms"]["network"] == pytest.approx(reduce["ms"])
    # with so slow a link each part computes while the other one sends
    assert report["split"]["ms"] < report["one batch"]["ms"]


def test_people_get_tables_and_a_verdict(capsys) -> None:
    assert main(["tune", TOY, *SMALL]) == 0
    head, operations, step, tried, steps, verdict = capsys.readouterr().out.split("\n\n")
    assert head.startswith("toy on ")
    assert "step of 18 tokens: 2 requests that decode behind 8 tokens, 1 prompts of 16" in head
    assert operations.splitlines()[0].split()[-2:] == ["bound", "by"]
    assert [line.split()[0] for line in step.splitlines()[1:4]] == ["step", "device", "host"]
    assert tried.startswith("best of ")
    assert len(steps.splitlines()) == 1 + 3
    assert verdict.startswith("Nothing is to be gained: the best split changes this step by +")


def written(capsys, folder: Path, monkeypatch, minimum_tokens: int | None, *words: str) -> str:
    """Return what is written if the search found that."""
    shutil.copy(TOY, folder / "toy.yaml")
    tuned = Tuned(Split("tokens", (0.25, 0.75)), [(Split("phase"), 1.0)], [], minimum_tokens)
    monkeypatch.setattr("camshaft.plugins.lab.tune.search", lambda costs, mix: tuned)
    monkeypatch.setattr("camshaft.plugins.lab.tune.table", lambda report: "")
    new = folder / "new.yaml"
    assert main(["tune", str(folder / "toy.yaml"), *SMALL, "--write", str(new), *words]) == 0
    return new.read_text()


def test_the_recipe_that_is_written_composes_with_the_split(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(capsys, tmp_path, monkeypatch, 40)
    assert text.splitlines()[:3] == Path(TOY).read_text().splitlines()[:3]
    scheduler = load_recipe(tmp_path / "new.yaml", Registry.discover()).scheduler
    assert scheduler.use.name == "nano_batch"
    settings = scheduler.use.settings
    assert (settings.by, settings.shares, settings.minimum_tokens) == ("tokens", (0.25, 0.75), 40)
    assert (scheduler.step_tokens, scheduler.max_running) == (64, 8)


def test_without_a_gain_the_recipe_stays_as_it_is(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(capsys, tmp_path, monkeypatch, None) == Path(TOY).read_text()


def test_without_a_gain_a_split_is_taken_out(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(capsys, tmp_path, monkeypatch, None, "--set", "scheduler.use=nano_batch")
    assert "scheduler: {use: continuous, step_tokens: 64, max_running: 8}" in text


def test_requests_of_a_measured_step_have_pages_of_their_own() -> None:
    composed = compose(load_recipe(TOY, Registry.discover()))
    load = Load(Mix(2, 1), context=8, length=16)
    step = step_of(load.mix, load, composed)
    assert step.starts.tolist() == [0, 1, 2, 18]
    assert step.context.tolist() == step.admissions.context.tolist() == [8, 8, 0]
    pages = [step.write_pages[number].tolist() for number in range(3)]
    assert pages == [[1, 2, 3], [4, 5, 6], [7, 8, 9, 10]]  # of 4 tokens each
    composed.engine.close()


def test_a_launch_is_timed_where_nobody_is_new() -> None:
    composed = compose(load_recipe(TOY, Registry.discover()))
    subject = Subject(composed, Load(Mix(2, 1), context=8, length=16))
    assert 0 < subject.launch_s(Mix(2, 1)) < 5
    assert subject.executor.parts.state.lengths[:3].tolist() == [9, 9, 16]
    composed.engine.close()
