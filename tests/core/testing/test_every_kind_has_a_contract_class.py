from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from camshaft import KINDS, Component, Registry

TESTS = Path(__file__).parents[2]
OURS = [one for one in Registry.discover().components() if one.distribution == "camshaft"]


def contract_name(kind: str) -> str:
    """`AttentionBackend` is tested by `camshaft.testing.attention.AttentionContract`."""
    return KINDS[kind].contract.partition(":")[2].removesuffix("Backend") + "Contract"


class Module:
    """A test file: which names each of its definitions leads to."""

    def __init__(self, path: Path) -> None:
        self.definitions = {
            node.name: node
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }

    def subclasses(self, base: str) -> Iterator[str]:
        """Yield the classes that pytest collects and that inherit from `base`, however far up."""
        for name, node in self.definitions.items():
            if (
                isinstance(node, ast.ClassDef)
                and name.startswith("Test")
                and base in self.bases(node)
            ):
                yield name

    def bases(self, node: ast.ClassDef) -> set[str]:
        found = {name for one in node.bases for name in names_in(one)}
        for name in found.copy():
            above = self.definitions.get(name)
            if isinstance(above, ast.ClassDef):
                found |= self.bases(above)
        return found

    def reached_from(self, name: str) -> set[str]:
        """Return what a definition names, and what the definitions that it names do."""
        found: set[str] = set()
        todo = [name]
        while todo:
            node = self.definitions.get(todo.pop())
            for new in names_in(node) - found if node is not None else ():
                found.add(new)
                todo.append(new)
        return found


def names_in(node: ast.AST) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return names - set(dir(builtins))


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return [Module(path) for path in sorted(TESTS.rglob("test_*.py"))]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_plugin_author_finds_the_contract_by_the_kind(kind: str) -> None:
    contract = getattr(import_module(f"camshaft.testing.{kind}"), contract_name(kind))
    assert [name for name in dir(contract) if name.startswith("test_")]
    assert contract.__doc__


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_contract_is_itself_tested_on_what_it_must_reject(kind: str) -> None:
    module = Module(TESTS / "core" / "testing" / f"test_{kind}_contract.py")
    reached = {name for one in module.definitions for name in module.reached_from(one)}
    assert {contract_name(kind), "failures"} <= reached


@pytest.mark.parametrize("component", OURS, ids=[f"{one.kind}-{one.name}" for one in OURS])
def test_our_own_component_is_held_to_the_contract(
    component: Component, modules: list[Module]
) -> None:
    implementation = component.implementation.partition(":")[2]
    base = contract_name(component.kind)
    assert any(
        implementation in module.reached_from(name)
        for module in modules
        for name in module.subclasses(base)
    ), f"no test class inherits from {base} and makes a {implementation}"


def test_there_is_something_to_hold_to_it() -> None:
    assert {"hardware", "attention", "cache", "scheduler"} <= {one.kind for one in OURS}


def test_a_class_of_another_component_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "def make_one(): return One()\n"
        "class Base(XContract): ...\n"
        "class TestOne(Base):\n    def make(self): return make_one()\n"
        "class TestNothing:\n    def make(self): return Two()\n"
    )
    module = Module(path)
    assert list(module.subclasses("XContract")) == ["TestOne"]
    assert "One" in module.reached_from("TestOne")
    assert "Two" not in module.reached_from("TestOne")
