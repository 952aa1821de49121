"""`${NAME}` and `${NAME:-default}` in text values of a recipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import Fault
from .tree import Node, parse_scalar, with_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

# `$${NAME}` is the way to write a literal `${NAME}`
_REFERENCE = re.compile(r"\$(?P<escaped>\$)?\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def interpolate(node: Node, environment: Mapping[str, str], faults: list[Fault]) -> Node:
    """Return the tree with variables filled in; undefined ones are added to `faults`.

    A value that stood unquoted is read again after filling in, so that `port: ${PORT}` is a number.
    """
    if isinstance(node.value, dict):
        entries = {
            key: interpolate(child, environment, faults) for key, child in node.value.items()
        }
        return with_entries(node, entries)
    if isinstance(node.value, list):
        items = [interpolate(child, environment, faults) for child in node.value]
        return Node(items, node.where, node.folder)
    if not isinstance(node.value, str) or node.style == "python" or "${" not in node.value:
        return node
    text = _filled(node.value, node.where, environment, faults)
    value = parse_scalar(text) if node.style == "plain" else text
    return Node(value, node.where, node.folder, node.style)


def _filled(text: str, where: str, environment: Mapping[str, str], faults: list[Fault]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        value: str | None = environment.get(match["name"], match["default"])
        if value is None:
            name = match["name"]
            faults.append(
                Fault(
                    where,
                    f"${{{name}}} is not set in the environment; set it, or write "
                    f"${{{name}:-default}}.",
                )
            )
            return ""
        return value

    if "${" in _REFERENCE.sub("", text):
        faults.append(
            Fault(where, f"'{text}' has a `${{` that is no ${{NAME}} or ${{NAME:-text}}.")
        )
    return _REFERENCE.sub(replacement, text)
