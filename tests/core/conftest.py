"""Plugins for tests: distributions that are installed into a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

GOOD = """
from camshaft import Component, hookimpl

@hookimpl
def camshaft_components():
    return [Component("scheduler", "{name}", "{module}:Nothing", summary="A scheduler for tests.")]
"""


class Site:
    """A folder on the import path into which a test installs distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, code: str, *, entry: str = "main", version: str = "1.2"):
        """Install a distribution with one plugin module; `{module}` in the code is its name."""
        module = distribution.replace("-", "_")
        code = dedent(code).replace("{module}", module)
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[camshaft]\n{entry} = {module}\n")

    def offer(self, distribution: str, name: str, **settings: str) -> None:
        """Install a distribution that offers one scheduler."""
        self.install(distribution, GOOD.replace("{name}", name), **settings)

    def engine(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `engine` in a process that sees what is installed here."""
        return subprocess.run(
            [sys.executable, "-m", "camshaft", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={"PYTHONPATH": str(self.folder), "PATH": "", **environment},
            timeout=50,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on the import path; modules imported from it are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if Path(origin).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file, dedented, below the test's folder, and return its path."""

    def writer(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return writer
