"""Every example of `docs/plugins.md` keeps its contract and runs in a recipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from fastapi.testclient import TestClient

from camshaft import KINDS, RecipeError, open_recipe
from camshaft.cli import main
from camshaft.client import LocalClient
from camshaft.compose import draw
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.service import Service
from camshaft.recipe import ServerSection
from camshaft.testing.rejects import failures
from camshaft.testing.scripted import ScriptedEngine
from camshaft.testing.text import byte_text
from tests.docs.reading import ROOT, blocks, blocks_of, run_toy

PAGE = ROOT / "docs" / "plugins.md"
# Random use is shorter here than where components are tested for their own sake.
FEWER = {"runs": 60, "draws": 5_000}
UNUSED = ("speculator", "grammar", "command")


class Example(NamedTuple):
    kind: str
    name: str
    code: str
    test: str
    recipe: str


def examples() -> dict[str, Example]:
    """Return what the page shows of each kind."""
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index("## One of each kind") : text.index("## A change to the scores")]
    found = {}
    for section in part.split("\n### ")[1:]:
        kind = section.partition("\n")[0].strip("`")
        *code, test = blocks_of(section, "python")
        whole = code or [one for one in blocks(PAGE, "python") if one.startswith("# slow_ones.py")]
        [name] = re.findall(r"^# test_(\w+)\.py\n", test)
        recipe = "".join(blocks_of(section, "yaml"))
        found[kind] = Example(kind, name, whole[0], test, recipe)
    return found


EXAMPLES = examples()
RUNNING = [kind for kind in EXAMPLES if kind not in UNUSED]
LONG = ("cache", "sampling")


def each(kinds: Iterable[str], long: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test for kinds of component, in a folder with their examples."""
    rows = [
        pytest.param(one, one, marks=[pytest.mark.slow] if one in long else [], id=one)
        for one in kinds
    ]
    return pytest.mark.parametrize(("folder", "kind"), rows, indirect=["folder"])


@pytest.fixture
def folder(
    request: pytest.FixtureRequest, beside_the_recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with the files of the example, which is the test's parameter."""
    one = EXAMPLES[request.param]
    (beside_the_recipes / f"{one.name}.py").write_text(one.code, encoding="utf-8")
    (beside_the_recipes / f"test_{one.name}.py").write_text(one.test, encoding="utf-8")
    recipe = f"extends: recipes/toy.yaml\nplugins: [./{one.name}.py]\n{one.recipe}"
    if one.kind == "observer":
        [recipe] = [text for text in blocks(PAGE, "yaml") if "observers:" in text]
    (beside_the_recipes / "mine.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.syspath_prepend(beside_the_recipes)
    yield beside_the_recipes
    for name in (one.name, f"test_{one.name}"):
        sys.modules.pop(name, None)


def contract_in(module: ModuleType) -> type:
    [contract] = [one for name, one in vars(module).items() if name.startswith("Test")]
    for name, value in FEWER.items():
        if hasattr(contract, name):
            setattr(contract, name, value)
    assert isinstance(contract, type)
    return contract


def test_there_is_an_example_of_every_kind_and_none_beside() -> None:
    assert list(EXAMPLES) == list(KINDS)
    assert len(blocks(PAGE, "python")) == 2 * len(KINDS) + len(["Alibi"])


@each(EXAMPLES, LONG)
def test_an_example_keeps_its_contract(folder: Path, kind: str) -> None:
    one = EXAMPLES[kind]
    assert one.code.startswith(f"# {one.name}.py")
    assert failures(contract_in(import_module(f"test_{one.name}"))) == []


@each(RUNNING)
def test_an_example_runs_in_a_recipe(folder: Path, kind: str) -> None:
    chosen = [one.component for _, one in open_recipe("mine.yaml").chosen()]
    assert (kind, EXAMPLES[kind].name) in {(one.kind, one.name) for one in chosen}
    run_toy("mine.yaml")


@each(("speculator", "grammar"))
def test_an_example_that_no_recipe_can_name_yet_is_refused(folder: Path, kind: str) -> None:
    name = EXAMPLES[kind].name
    recipe = open_recipe("mine.yaml", [f"sampling.{kind}={name}"])
    with pytest.raises(RecipeError, match=f"sampling.{kind}"):
        draw(recipe)


@pytest.mark.parametrize("folder", ["command"], indirect=True)
def test_the_command_of_an_installed_package_is_one_of_engine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = folder / "parts-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[camshaft]\nparts = parts\n")
    assert main(["parts", "recipes/toy.yaml", "--set", "scheduler=static"]) == 0
    assert capsys.readouterr().out == "static over paged\n"


@pytest.mark.parametrize("folder", ["route"], indirect=True)
def test_the_route_answers_behind_the_gate_of_the_server(folder: Path) -> None:
    [route] = [one.build() for one in open_recipe("mine.yaml").server.routes]
    engine = ScriptedEngine()
    client = LocalClient(lambda: (engine, engine.traits.info))
    client.wait_ready()
    service = Service(client, ServerSection(), max_running=1)
    service.start(byte_text())
    with TestClient(create_app(service, [route])) as http:
        answer = http.get("/room")
    client.close()
    assert answer.json() == {"tokens": engine.traits.info.room}


def test_alibi_penalises_distance() -> None:
    [code] = [one for one in blocks(PAGE, "python") if "Alibi" in one]
    names: dict[str, type] = {}
    exec(code, names)
    import torch

    class Layer:
        heads = 2

    mod = names["Alibi"].score_mod(None, Layer, torch.device("cpu"))  # type: ignore[attr-defined]
    scores = [mod(1.0, 0, head, 9, 5).item() for head in (0, 1)]
    assert scores == [1 - 4 / 16, 1 - 4 / 256]
