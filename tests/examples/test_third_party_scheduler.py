"""The example package, installed with pip into a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOYS = ROOT / "tests" / "core" / "recipe" / "toys.py"
RECIPE = f"""\
model: m.gguf
hardware: cpu
attention: sdpa
cache: paged
scheduler: {{use: shortest_first, patience_s: 5}}
plugins: [{TOYS}]
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, with `site/` where it is installed."""
    copy = tmp_path_factory.mktemp("example") / "third_party_scheduler"
    shutil.copytree(ROOT / "examples" / "third_party_scheduler", copy)
    words = (
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(copy / "site"),
    )
    subprocess.run([sys.executable, "-m", "pip", *words, str(copy)], check=True, timeout=50)
    return copy


def run(package: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package / "site"), **environment},
        timeout=50,
        check=False,
    )


def test_the_registry_lists_it_with_its_distribution_and_version(package: Path) -> None:
    rows = json.loads(run(package, "camshaft", "plugins", "--json").stdout)
    (row,) = [row for row in rows if row["name"] == "shortest_first"]
    assert (row["kind"], row["distribution"], row["version"], row["api_version"]) == (
        "scheduler",
        "camshaft-shortest-first",
        "1.0.0",
        0,
    )
    assert row["settings"]["properties"]["patience_s"]["default"] == 10.0


def test_one_line_of_a_recipe_chooses_it(package: Path) -> None:
    (package / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    # the toys take the names of the engine's own components
    done = run(package, "camshaft", "check", "recipe.yaml", CAMSHAFT_DISABLE="camshaft")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("recipe.yaml: OK")


def test_it_passes_the_contract_of_schedulers(package: Path) -> None:
    done = run(package, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
