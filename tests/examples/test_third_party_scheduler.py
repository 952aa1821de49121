"""The example package, installed with pip into a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow  # pip, and processes that load torch

ROOT = Path(__file__).parents[2]
TOY = ROOT / "recipes" / "toy.yaml"
RECIPE = f"""\
extends: {TOY}
scheduler: shortest_first
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


def environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package / "site"), "PYTHONUNBUFFERED": "1"}


def run(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=package,
        env=environment(package),
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


def test_an_option_on_the_command_line_chooses_it(package: Path) -> None:
    words = ("--set", "scheduler.use=shortest_first", "--set", "scheduler.patience_s=5", "--show")
    done = run(package, "camshaft", "check", str(TOY), *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scheduler.use = 'shortest_first'  (--set scheduler.use)" in done.stdout
    assert "scheduler.patience_s = 5.0  (--set scheduler.patience_s)" in done.stdout


def test_it_passes_the_contract_of_schedulers_in_its_own_tests(package: Path) -> None:
    done = run(package, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 15


def test_one_line_of_a_recipe_serves_it(package: Path) -> None:
    (package / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    server = subprocess.Popen(
        [sys.executable, "-m", "camshaft", "serve", "recipe.yaml", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=package,
        env=environment(package),
    )
    try:
        assert server.stdout is not None
        lines: list[str] = []
        while not (found := re.search(r"ready: .* on (http://\S+),", "".join(lines))):
            lines.append(server.stdout.readline())
            assert lines[-1], f"the server ended: {lines}"
        with httpx.Client(base_url=found[1], timeout=20) as http:
            asked = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
            answer = http.post("/v1/completions", json=asked).json()
            info = http.get("/info").json()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.communicate()
    assert answer["usage"]["completion_tokens"] == 4
    assert info["components"]["scheduler"] == "shortest_first"
    assert info["plugins"]["camshaft-shortest-first"] == "1.0.0"
