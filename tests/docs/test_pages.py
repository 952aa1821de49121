"""What the pages say is so: tables, links, commands, and examples that run as they stand."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from camshaft import LLM, Registry, open_recipe
from camshaft.cli import main
from camshaft.cli.main import _load, _summaries
from camshaft.recipe.sections import SECTIONS
from camshaft.testing.command import words_of
from camshaft.testing.rejects import failures
from camshaft.testing.scheduler import SchedulerContract
from docs.tables import components, kinds, renewed, sections
from tests.docs.reading import PAGES, ROOT, blocks, named, run_toy, without_blocks

_LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")

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


@pytest.mark.parametrize("table", [sections, components, kinds])
def test_no_cell_of_a_table_is_empty(table: Callable[[], str]) -> None:
    rows = [line for line in table().splitlines() if line.startswith("|")]
    assert len(rows) > 15
    assert [row for row in rows if "|  |" in row] == []


def test_every_setting_is_explained_where_it_is_written() -> None:
    forms = [*SECTIONS.values(), *(one.settings for one in Registry.discover().components())]
    assert [form.__name__ for form in forms if not form.__doc__] == []
    fields = [(form.__name__, *one) for form in forms for one in form.model_fields.items()]
    assert [fields[:2] for *fields, one in fields if not one.description] == []


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_every_link_within_the_repository_leads_somewhere(path: Path) -> None:
    for target, anchor in _LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
        page = path.parent / target if target else path
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


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
    page = ROOT / "docs" / "plugins.md"
    [code] = [one for one in blocks(page, "python") if one.startswith("# slow_ones.py")]
    [recipe] = [one for one in blocks(page, "yaml") if "slow_ones" in one]
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
