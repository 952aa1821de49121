"""A recipe as a tree that knows where each value was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from ..errors import Fault, RecipeError

if TYPE_CHECKING:
    from collections.abc import Mapping

Scalar: TypeAlias = str | int | float | bool | None
_TYPED = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null")}
_PLAIN = {
    f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "timestamp", "merge", "value")
}


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a recipe.

    Attributes:
        value: A scalar, or nodes by key or in order.
        where: `file:line`, `--set a.b` or another origin, for messages.
        folder: What relative paths in it are relative to.
        style: Whether a scalar stood in quotes, or came from Python and is taken literally.
    """

    value: Scalar | dict[str, Node] | list[Node]
    where: str
    folder: Path
    style: Literal["plain", "quoted", "python"] = "plain"

    def at(self, *path: str | int) -> Node | None:
        """Return the node under a path of keys and indices, or None."""
        node: Node | None = self
        for step in path:
            node = _child(node, step)
            if node is None:
                return None
        return node

    @property
    def entries(self) -> dict[str, Node]:
        """The nodes by key; empty for a scalar or a list."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def plain(self) -> Any:  # noqa: ANN401
        """The value without origins, as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value


def read_file(path: Path) -> Node:
    """Read a YAML 1.2 file.

    Raises:
        RecipeError: It is missing, not UTF-8, not YAML, or names a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError([Fault(str(path), "there is no such file.")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError([Fault(str(path), f"it cannot be read: {error}.")]) from None
    node = read_text(text, str(path), path.parent)
    if not isinstance(node.value, dict):
        raise RecipeError(
            [Fault(str(path), "a recipe is a mapping of sections, such as `model:`.")]
        )
    return node


def read_text(text: str, name: str, folder: Path, *, lines: bool = True) -> Node:
    """Read YAML text; `name` is shown in messages, with line numbers unless `lines` is false."""
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if lines and mark else name
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise RecipeError([Fault(where, f"this is not YAML: {said}.")]) from None
    except YAMLError as error:
        raise RecipeError([Fault(name, f"this is not YAML: {error}".rstrip() + ".")]) from None
    builder = _Builder(yaml, name, folder, lines)
    node = builder.build(root, ()) if root is not None else Node(None, name, folder)
    if builder.faults:
        raise RecipeError(builder.faults)
    return node


def from_python(value: object, where: str, folder: Path) -> Node:
    """Make a tree of plain Python values. Strings are taken literally, without `${...}`."""
    if isinstance(value, dict):
        children = {str(key): from_python(item, where, folder) for key, item in value.items()}
        return Node(children, where, folder)
    if isinstance(value, list | tuple):
        return Node([from_python(item, where, folder) for item in value], where, folder)
    if isinstance(value, str | int | float | bool | None):
        return Node(value, where, folder, "python")
    if isinstance(value, Path):
        return Node(str(value), where, folder, "python")
    raise RecipeError([Fault(where, f"a recipe cannot hold {value!r:.80}.")])


def parse_scalar(text: str) -> Scalar:
    """Return what an unquoted YAML scalar with this text means: a number, a word, nothing."""
    yaml = YAML(typ="safe", pure=True)
    tag = yaml.resolver.resolve(ScalarNode, text, (True, False))
    return _construct(yaml, ScalarNode(tag, text)) if str(tag) in _TYPED else text


def _construct(yaml: YAML, node: ScalarNode) -> Scalar:
    value: Scalar = yaml.constructor.construct_object(node)
    return value


def _child(node: Node | None, step: str | int) -> Node | None:
    if node is None:
        return None
    if isinstance(node.value, dict):
        return node.value.get(str(step))
    if isinstance(node.value, list) and str(step).isdigit() and int(step) < len(node.value):
        return node.value[int(step)]
    return None


class _Builder:
    """Turns the parser's nodes into ours, and notes every fault on the way."""

    def __init__(self, yaml: YAML, name: str, folder: Path, lines: bool) -> None:
        self._yaml = yaml
        self._name = name
        self._folder = folder
        self._lines = lines
        self.faults: list[Fault] = []

    def build(self, node: Any, open_nodes: tuple[int, ...], where: str = "") -> Node:  # noqa: ANN401
        where = where or self._where(node)
        if id(node) in open_nodes:
            self.faults.append(Fault(where, "this anchor contains itself."))
            return Node(None, where, self._folder)
        inside = (*open_nodes, id(node))
        if str(node.tag) not in _TYPED | _PLAIN:
            self.faults.append(Fault(where, f"{node.tag} is not supported; write plain values."))
        if isinstance(node, MappingNode):
            return Node(self._mapping(node, inside), where, self._folder)
        if isinstance(node, SequenceNode):
            items = [self.build(child, inside) for child in node.value]
            return Node(items, where, self._folder)
        style: Literal["plain", "quoted"] = "quoted" if node.style else "plain"
        return Node(self._scalar(node), where, self._folder, style)

    def _mapping(self, node: MappingNode, inside: tuple[int, ...]) -> dict[str, Node]:
        children: dict[str, Node] = {}
        for key, child in node.value:
            where = self._where(key)
            if not isinstance(key, ScalarNode):
                self.faults.append(Fault(where, "a key must be a word."))
            elif key.value in children:
                first = children[key.value].where
                self.faults.append(Fault(where, f"'{key.value}' stands here twice; see {first}."))
            else:
                children[key.value] = self.build(child, inside, where)
        return children

    def _scalar(self, node: ScalarNode) -> Scalar:
        if str(node.tag) in _TYPED:
            return _construct(self._yaml, node)
        text: str = node.value
        return text

    def _where(self, node: Any) -> str:  # noqa: ANN401
        return f"{self._name}:{node.start_mark.line + 1}" if self._lines else self._name


def with_entries(node: Node, entries: Mapping[str, Node]) -> Node:
    """Return a mapping node at the same place with other entries."""
    return Node(dict(entries), node.where, node.folder)
