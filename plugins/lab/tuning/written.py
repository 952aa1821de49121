"""A recipe with another scheduler: its text, with everything else as it stands."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark
from ruamel.yaml.tokens import CommentToken
from ruamel.yaml.util import load_yaml_guess_indent

if TYPE_CHECKING:
    from collections.abc import Collection

    from .splits import Split

OURS = ("shares", "by", "minimum_tokens")
"""Settings of `nano_batch` that a search decides about."""


def with_split(text: str, split: Split, minimum_tokens: int, known: Collection[str]) -> str:
    """Return a recipe that splits its steps.

    Args:
        text: YAML.
        split: How.
        minimum_tokens: Smaller steps stay whole.
        known: Fields that the section and the scheduler `nano_batch` have; others go.
    """
    fields: dict[str, Any] = {"use": "nano_batch", "by": split.by}
    if split.shares:
        fields["shares"] = _flow(list(split.shares))
    return _rewritten(text, {**fields, "minimum_tokens": minimum_tokens}, known)


def without_split(text: str, known: Collection[str]) -> str:
    """Return a recipe whose scheduler is `continuous`, where it was `nano_batch`.

    Args:
        text: YAML.
        known: Fields that the section and the scheduler `continuous` have; others go.
    """
    return _rewritten(text, {"use": "continuous"}, known)


def _rewritten(text: str, fields: dict[str, Any], known: Collection[str]) -> str:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10**6  # no line is broken anew
    _, indent, offset = load_yaml_guess_indent(text)
    if offset is not None:  # there is a list
        yaml.indent(sequence=indent or offset + 2, offset=offset)
    recipe = yaml.load(text)
    section = recipe.get("scheduler")
    if not isinstance(section, CommentedMap):  # a name alone, or left to the recipe below
        section = CommentedMap()
        section.fa.set_flow_style()
        recipe["scheduler"] = section
    _replace(section, fields, known)
    said = io.StringIO()
    yaml.dump(recipe, said)
    return said.getvalue()


def _replace(section: CommentedMap, fields: dict[str, Any], known: Collection[str]) -> None:
    """Take out what is not known, and put in `fields`; remarks between the lines stay there."""
    below = _taken(section, next(reversed(section))) if section else ""
    for name in [name for name in section if name not in known or name in OURS]:
        place, remarks = list(section).index(name), _taken(section, name)
        section.ca.items.pop(name, None)  # what stands beside a field goes with it
        del section[name]
        if place:
            _give(section, list(section)[place - 1], remarks)
    for place, (name, value) in enumerate(fields.items()):
        if name in section:
            section[name] = value
        else:
            section.insert(place, name, value)
            if place:  # a remark above the next field stays there
                _give(section, name, _taken(section, list(section)[place - 1]))
    _give(section, next(reversed(section)), below)


def _taken(section: CommentedMap, name: str) -> str:
    """Take away the lines of remarks below a field; that parser has them as part of the field."""
    remark = (section.ca.items.get(name) or [None] * 4)[2]
    if remark is None:
        return ""
    beside, _, below = remark.value.partition("\n")
    remark.value = f"{beside}\n"
    return str(below)


def _give(section: CommentedMap, name: str, below: str) -> None:
    if not below:
        return
    places = section.ca.items.setdefault(name, [None] * 4)
    if places[2] is None:
        places[2] = CommentToken("\n", CommentMark(0), None)
    places[2].value += below


def _flow(values: list[float]) -> CommentedSeq:
    sequence = CommentedSeq(values)
    sequence.fa.set_flow_style()
    return sequence
