"""The list of packages, the links of the editable install and the folders on disk agree."""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import camshaft

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAPPED = {
    "core": "camshaft",
    "executor": "camshaft.executor",
    "formats": "camshaft",
    "front": "camshaft",
    "native": "camshaft.native",
    "plugins": "camshaft.plugins",
}


def modules_on_disk() -> dict[str, Path]:
    """Every Python file of the project by the place where it is installed."""
    found = {}
    for folder, package in MAPPED.items():
        for path in (ROOT / folder).rglob("*.py"):
            relative = path.relative_to(ROOT / folder)
            found[f"{package.replace('.', '/')}/{relative.as_posix()}"] = path
    return found


def test_every_folder_with_code_is_listed_as_a_package() -> None:
    folders = {Path(name).parent.as_posix().replace("/", ".") for name in modules_on_disk()}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_package_has_an_init_file_with_a_docstring() -> None:
    for name, path in modules_on_disk().items():
        init = path.parent / "__init__.py"
        assert init.is_file(), f"{name}: {init} is missing"
        assert init.read_text(encoding="utf-8").startswith('"""'), f"{init} has no docstring"


def test_the_install_is_fresh() -> None:
    installed = Path(camshaft.__file__).parents[1]
    linked = {path.relative_to(installed).as_posix() for path in installed.glob("camshaft/**/*.py")}
    assert linked == set(modules_on_disk()), "files came or went: run `make link`"


def test_every_plugin_folder_is_an_entry_point() -> None:
    folders = {path.parent.name for path in (ROOT / "plugins").glob("*/components.py")}
    assert PROJECT["project"]["entry-points"]["camshaft"] == {
        name: f"camshaft.plugins.{name}.components" for name in folders
    }


def test_nothing_is_shadowed_by_build_remains() -> None:
    assert list(ROOT.glob("*.egg-info")) == [], "delete it: it hides the installed entry points"
    assert distribution("camshaft").version == PROJECT["project"]["version"]


def test_core_has_no_module_where_the_plugins_are_mapped() -> None:
    for name in ("plugins", "executor", "checkpoint", "text", "client", "generate", "native"):
        assert not (ROOT / "core" / name).exists()
        assert not (ROOT / "core" / f"{name}.py").exists()


def test_the_core_stays_small() -> None:
    core = [path for path in (ROOT / "core").rglob("*.py") if "testing" not in path.parts]
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in core) < 6000


def code_lines(source: str) -> int:
    """Count lines that hold code: neither blank, nor comment, nor docstring."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno:
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)
