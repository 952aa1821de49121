"""What the pages say is so: tables, links, commands, and examples that run as they stand."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from camshaft import LLM, Registry, open_recipe
from camshaft.cli import main
from camshaft.cli.main import _load, _summaries
from camshaft.compose import compose
from camshaft.testing.command import words_of
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.rejects import failures
from camshaft.testing.scheduler import SchedulerContract
from docs.tables import renewed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES += sorted(ROOT.glob("examples/*/README.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(path: Path, language: str) -> list[str]:
    found = _BLOCK.findall(path.read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


CALLS = [
    pytest.param(line.strip(), id=f"{named(path)}: {line.strip()}"[:70])
    for path in PAGES
    for block in blocks(path, "sh")
    for line in block.splitlines()
    if line.startswith("engine ")
]


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_the_tables_are_those_of_the_code(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert renewed(page) == page, "renew them: python -m docs.tables"


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_link_within_the_repository_leads_somewhere(path: Path) -> None:
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    assert [one for one in targets if not (path.parent / one).exists()] == []


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_engine_is_one_that_it_takes(call: str) -> None:
    name, *words = words_of(call.partition(" #")[0])[1:]
    registry = Registry.discover()
    assert name in _summaries(registry)
    parser = argparse.ArgumentParser(exit_on_error=False)
    _load(name, registry).add_arguments(parser)
    args = parser.parse_args(words)
    assert not hasattr(args, "recipe") or (ROOT / args.recipe).is_file()


def test_there_are_calls_to_try() -> None:
    assert len(CALLS) > 10


@pytest.fixture
def beside_the_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which `recipes/` is ours, as in the repository's root."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_toy(recipe: str, *overrides: str) -> Any:
    engine = compose(open_recipe(recipe, overrides)).engine
    for number in range(3):
        engine.submit(make_request(f"r{number}", [5] * 9, 4, ignore_eos=True))
    results = run_to_end(engine)
    assert [len(one.token_ids) for one in results.values()] == [4, 4, 4]
    return engine


def test_the_scheduler_of_the_readme_runs_and_keeps_its_contract(beside_the_recipes: Path) -> None:
    [code] = [one for one in blocks(ROOT / "README.md", "python") if "NewestFirst" in one]
    [recipe] = [one for one in blocks(ROOT / "README.md", "yaml") if "newest_first" in one]
    Path("newest_first.py").write_text(code, encoding="utf-8")
    Path("mine.yaml").write_text(recipe.replace("quickstart", "toy"), encoding="utf-8")
    scheduler = type(run_toy("mine.yaml").parts.scheduler)
    assert scheduler.__name__ == "NewestFirst"

    class Contract(SchedulerContract):
        def make(self, limits: Any) -> Any:
            return scheduler(None, limits)

    assert failures(Contract) == []


def test_the_observer_of_the_plugin_page_reports(
    beside_the_recipes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = [one for one in blocks(ROOT / "docs" / "plugins.md", "python") if "hookimpl" in one]
    [recipe] = blocks(ROOT / "docs" / "plugins.md", "yaml")
    Path("slow_ones.py").write_text(code, encoding="utf-8")
    Path("mine.yaml").write_text(recipe, encoding="utf-8")
    run_toy("mine.yaml")
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d\.\d{3}", "T", line) for line in lines] == [
        f"r{number}: T s, ended by length" for number in range(3)
    ]


def test_the_variant_of_the_recipe_page_composes(beside_the_recipes: Path) -> None:
    [variant] = [one for one in blocks(ROOT / "docs" / "recipes.md", "yaml") if "extends" in one]
    Path("mine.yaml").write_text(variant.replace("quickstart", "recipes/quickstart"))
    assert open_recipe("mine.yaml").model.dtype == "float32"


@pytest.mark.parametrize("page", ["README.md", "docs/recipes.md"])
def test_the_recipe_of_a_page_names_what_is_there(beside_the_recipes: Path, page: str) -> None:
    [recipe] = [one for one in blocks(ROOT / page, "yaml") if one.startswith("model:")]
    Path("mine.yaml").write_text(recipe, encoding="utf-8")
    open_recipe("mine.yaml").check_implementations()


def test_the_fault_of_the_recipe_page_is_told_in_its_words(
    beside_the_recipes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [shown] = blocks(ROOT / "docs" / "recipes.md", "text")
    Path("mine.yaml").write_text("extends: recipes/toy.yaml\n\n\n\ncache: {page_token: 8}\n")
    assert main(["check", "mine.yaml"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(shown.removeprefix("recipes/").partition(" Allowed")[0])


@pytest.mark.real
def test_the_python_of_the_readme_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = [one for one in blocks(ROOT / "README.md", "python") if "camshaft.LLM" in one]
    small = ["cache.memory=64MiB", "hardware.threads=1"]
    monkeypatch.setattr("camshaft.LLM", lambda recipe: LLM(ROOT / recipe, small))
    exec(code, {})
    said = capsys.readouterr().out
    assert "camshaft" in said
    assert "completion_tokens=32" in said


def test_the_curl_of_the_readme_asks_the_model_that_is_served() -> None:
    [call] = [one for one in blocks(ROOT / "README.md", "sh") if one.startswith("curl")]
    words = words_of(call.replace("\\\n", " "))
    body = json.loads(words[words.index("-d") + 1])
    recipe = open_recipe(ROOT / "recipes" / "quickstart.yaml")
    assert body["model"] == recipe.model.served_name
    assert f":{recipe.server.port}/v1/chat/completions" in words[1]
