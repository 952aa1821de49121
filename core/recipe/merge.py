"""What it means to lay one recipe over another: `extends` and `--set` follow the same rules.

A component is written `name` or `{use: name, ...}`. Naming another component drops the fields of
the old one and keeps those of the section, since every component of the kind honours them.
"""

from __future__ import annotations

from .sections import COMPONENT_SECTIONS, SECTIONS
from .tree import Node, with_entries

PHASES = ("prefill", "decode")


def merge(base: Node, over: Node, path: tuple[str, ...] = ()) -> Node:
    """Return `base` with `over` laid upon it.

    Mappings are merged key by key; lists and scalars are replaced; see the module for components.
    """
    over = _as_component(over, base, path)
    base = _as_component(base, over, path)
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    if path == ("attention",):
        base = _aligned(base, over)
    kept = base.entries
    old, new = base.at("use"), over.at("use")
    if new is not None and (old is None or old.value != new.value):
        fields = section_fields(path)
        kept = {key: node for key, node in kept.items() if old is None or key in fields}
    merged = dict(kept)
    for key, node in over.entries.items():
        merged[key] = merge(kept[key], node, (*path, key)) if key in kept else node
    return with_entries(over, merged)


def section_fields(path: tuple[str, ...]) -> frozenset[str]:
    """Return the fields at a path that belong to the section, whatever component it uses."""
    if len(path) != 1 or path[0] not in SECTIONS:
        return frozenset()
    return frozenset(SECTIONS[path[0]].model_fields) - {"use"}


def by_phase(attention: Node) -> Node:
    """Write an attention section as `{prefill: ..., decode: ...}`."""
    attention = _as_component(attention, attention, ("attention",))
    if not isinstance(attention.value, dict) or any(name in attention.value for name in PHASES):
        return attention
    return with_entries(attention, dict.fromkeys(PHASES, attention))


def _aligned(base: Node, over: Node) -> Node:
    # `use` covers both phases, so over a pair it replaces the pair, and a phase over it splits it
    if any(phase in over.entries for phase in PHASES):
        return by_phase(base)
    if any(phase in base.entries for phase in PHASES):
        return with_entries(base, {})
    return base


def _as_component(node: Node, other: Node, path: tuple[str, ...]) -> Node:
    if not isinstance(node.value, str):
        return node
    is_section = len(path) == 1 and path[0] in (*COMPONENT_SECTIONS, "model")
    if is_section or isinstance(other.value, dict):
        key = "source" if path == ("model",) else "use"
        return Node({key: node}, node.where, node.folder)
    return node
