"""What tests of pages share: the pages, what stands in their blocks, and a run of the toy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from camshaft import open_recipe
from camshaft.compose import compose
from camshaft.testing.engines import make_request, run_to_end

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES += sorted(ROOT.glob("examples/*/README.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(text: str, language: str) -> list[str]:
    return [block for name, block in _BLOCK.findall(text) if name == language]


def blocks(path: Path, language: str) -> list[str]:
    return blocks_of(path.read_text(encoding="utf-8"), language)


def without_blocks(path: Path) -> str:
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_toy(recipe: str, *overrides: str) -> Any:
    engine = compose(open_recipe(recipe, overrides)).engine
    for number in range(3):
        engine.submit(make_request(f"r{number}", [5] * 9, 4, ignore_eos=True))
    results = run_to_end(engine)
    assert [one.message for one in results.values()] == [""] * 3
    assert [len(one.token_ids) for one in results.values()] == [4, 4, 4]
    return engine
