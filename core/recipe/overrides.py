"""`--set`: change a recipe from the command line.

`a.b=VALUE` sets, `a.0.b=VALUE` reaches into a list, `a+=VALUE` appends to one, `~a.b` deletes.
Values are YAML.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import Fault, RecipeError
from .merge import PHASES, by_phase, merge
from .tree import Node, read_text, with_entries

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORM = re.compile(
    r"(?P<delete>~)?(?P<path>[\w-]+(?:\.[\w-]+)*)(?:(?P<sign>\+?=)(?P<value>.*))?", re.S
)


class Override(NamedTuple):
    """One parsed `--set`.

    Attributes:
        text: As the user wrote it.
        action: What to do.
        path: Keys and indices.
        value: What to set or append; None to delete.
    """

    text: str
    action: Literal["set", "append", "delete"]
    path: tuple[str, ...]
    value: Node | None

    @property
    def where(self) -> str:
        """Its place in messages."""
        return f"--set {'~' if self.action == 'delete' else ''}{'.'.join(self.path)}"


def apply_overrides(root: Node, texts: Iterable[str]) -> Node:
    """Return the recipe with all overrides applied, in order; later ones win.

    Those that name a component (`cache.use=X`) go first, for they drop fields of the old one and
    must not drop what another override sets.

    Raises:
        RecipeError: Overrides that are malformed or reach nothing, all of them.
    """
    faults: list[Fault] = []
    overrides: list[Override] = []
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except RecipeError as error:
            faults += error.faults
    for override in sorted(overrides, key=lambda one: one.path[-1] != "use"):
        try:
            root = _apply(root, override, override.path, ())
        except RecipeError as error:
            faults += error.faults
    if faults:
        raise RecipeError(faults)
    return root


def parse_override(text: str) -> Override:
    """Read one override.

    Raises:
        RecipeError: It has none of the forms, or its value is not YAML.
    """
    match = _FORM.fullmatch(text)
    if match is None or bool(match["delete"]) == bool(match["sign"]):
        raise RecipeError(
            [Fault(f"--set {text}", "write a.b=VALUE, a.0.b=VALUE, a+=VALUE or ~a.b (to delete).")]
        )
    path = tuple(match["path"].split("."))
    if match["delete"]:
        return Override(text, "delete", path, None)
    value = read_text(match["value"], f"--set {match['path']}", Path.cwd(), lines=False)
    return Override(text, "append" if match["sign"] == "+=" else "set", path, value)


def _apply(
    node: Node | None, override: Override, path: tuple[str, ...], done: tuple[str, ...]
) -> Node:
    """Return `node`, which lies at `done`, changed at `path` below it."""
    if not path:
        return _leaf(node, override, done)
    if node is None or node.value is None:
        _require(override, override.action != "delete", done, "is not in the recipe")
        node = Node({}, override.where, Path.cwd())
    if isinstance(node.value, list):
        return _apply_in_list(node, override, path, done)
    return _apply_in_mapping(node, override, path, done)


def _apply_in_list(
    node: Node, override: Override, path: tuple[str, ...], done: tuple[str, ...]
) -> Node:
    items = list(node.value) if isinstance(node.value, list) else []
    fits = path[0].isdigit() and int(path[0]) < len(items)
    _require(override, fits, done, f"has {len(items)} entries, counted from 0, and no '{path[0]}'")
    index = int(path[0])
    if override.action == "delete" and len(path) == 1:
        del items[index]
    else:
        items[index] = _apply(items[index], override, path[1:], (*done, path[0]))
    return Node(items, node.where, node.folder)


def _apply_in_mapping(
    node: Node, override: Override, path: tuple[str, ...], done: tuple[str, ...]
) -> Node:
    key, rest = path[0], path[1:]
    if isinstance(node.value, str):
        node = Node({"use": node}, node.where, node.folder)  # a component that was only named
    _require(override, isinstance(node.value, dict), done, "holds a plain value, nothing below it")
    if done == ("attention",) and key in PHASES:
        node = by_phase(node)
    entries = dict(node.entries)
    if override.action == "delete" and not rest:
        _require(override, key in entries, (*done, key), "is not in the recipe")
        del entries[key]
        return with_entries(node, entries)
    if override.action == "set" and key == "use" and not rest and override.value is not None:
        return merge(node, Node({"use": override.value}, override.where, Path.cwd()), done)
    entries[key] = _apply(entries.get(key), override, rest, (*done, key))
    return with_entries(node, entries)


def _leaf(node: Node | None, override: Override, done: tuple[str, ...]) -> Node:
    value = override.value
    assert value is not None, "deletions end one level above"
    if override.action == "append":
        is_list = node is None or node.value is None or isinstance(node.value, list)
        _require(override, is_list, done, "is not a list, so nothing can be appended")
        items = node.value if node is not None and isinstance(node.value, list) else []
        return Node([*items, value], override.where, Path.cwd())
    if node is not None and node.at("use") is not None and isinstance(value.value, str):
        return merge(node, value, done)  # a bare name is `use: name`
    return value


def _require(override: Override, condition: bool, path: tuple[str, ...], fault: str) -> None:
    if not condition:
        raise RecipeError([Fault(override.where, f"{'.'.join(path) or 'the recipe'} {fault}.")])
