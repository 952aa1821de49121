"""Read a recipe: file, `extends`, `--set`, environment, plugins, and then every section."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Fault, RecipeError, did_you_mean
from ..registry import Registry, disabled_in
from .environment import interpolate
from .merge import by_phase, merge
from .overrides import apply_overrides
from .recipe import Recipe
from .resolve import Resolver
from .sections import COMPONENT_SECTIONS, LATER, LISTS, REQUIRED, SECTIONS, AttentionSection
from .tree import Node, from_python, read_file, with_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_KEYS = (*SECTIONS, *LISTS, "plugins", "extends")
_SCHEME = re.compile(r"[a-z_]{2,}:")
_log = logging.getLogger("camshaft")


def open_recipe(
    path: str | Path,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Recipe:
    """Discover the plugins and read a recipe with them: what a program calls once, at its start.

    Logs one warning for each plugin that is broken and that the recipe does not name.

    Raises:
        RecipeError: The recipe does not compose; all faults at once.
    """
    environment = os.environ if environment is None else environment
    registry = Registry.discover(disabled=disabled_in(environment))
    recipe = load_recipe(path, registry, overrides, environment)
    warn_of_broken_plugins(recipe)
    return recipe


def warn_of_broken_plugins(recipe: Recipe) -> None:
    """Log one warning for each plugin that is broken; the recipe does without them."""
    for line in recipe.registry.warnings():
        _log.warning("%s", line)


def load_recipe(
    path: str | Path,
    registry: Registry,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Recipe:
    """Read a recipe file.

    Args:
        path: The YAML file.
        registry: The plugins to choose from; those that the recipe lists as files are added.
        overrides: Changes as `--set` takes them.
        environment: Values for `${NAME}`; the process's own by default.

    Raises:
        RecipeError: The recipe does not compose; all faults at once.
    """
    path = Path(path)
    return _load(read_file(path), str(path), (path.resolve(),), registry, overrides, environment)


def parse_recipe(
    mapping: Mapping[str, Any],
    registry: Registry,
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Recipe:
    """Read a recipe from plain Python data. Paths are relative to the working directory.

    Raises:
        RecipeError: The recipe does not compose; all faults at once.
    """
    root = from_python(dict(mapping), "recipe", Path.cwd())
    return _load(root, "recipe", (), registry, overrides, environment)


def _load(
    root: Node,
    name: str,
    opened: tuple[Path, ...],
    registry: Registry,
    overrides: Iterable[str],
    environment: Mapping[str, str] | None,
) -> Recipe:
    environment = os.environ if environment is None else environment
    faults: list[Fault] = []
    root = apply_overrides(_extended(root, opened, environment), overrides)
    root = interpolate(root, environment, faults)
    root = _normalised(root)
    plugins, registry = _with_plugins(root, registry, faults)
    resolver = Resolver(registry)
    resolver.faults += faults
    _refuse_unknown_keys(root, resolver)
    parts = {key: _section(key, root, name, resolver) for key in SECTIONS}
    for key, kind in LISTS.items():
        node = root.at(key)
        parts[key] = resolver.components(kind, node, key) if node is not None else ()
    if resolver.faults:
        raise RecipeError(dict.fromkeys(resolver.faults))
    if isinstance(parts["attention"], dict):
        parts["attention"] = AttentionSection.model_validate(parts["attention"])
    origins = dict(_origins(root, ""))
    return Recipe(**parts, plugins=plugins, name=name, registry=registry, origins=origins)


def _extended(root: Node, opened: tuple[Path, ...], environment: Mapping[str, str]) -> Node:
    """Lay a recipe over the one that it extends, and that over its own, to the end of the chain."""
    entries = dict(root.entries)
    extends = entries.pop("extends", None)
    root = with_entries(root, entries)
    if extends is None:
        return root
    faults: list[Fault] = []
    target = interpolate(extends, environment, faults).value
    if faults or not isinstance(target, str):
        raise RecipeError(faults or [Fault(extends.where, "extends takes the path of one recipe.")])
    path = Path(os.path.normpath(extends.folder / target))
    if path.resolve() in opened:
        chain = " -> ".join(one.name for one in (*opened, path))
        raise RecipeError([Fault(extends.where, f"extends goes in a circle: {chain}.")])
    if not path.is_file():
        raise RecipeError(
            [Fault(extends.where, f"extends names '{target}', but {path} is no file.")]
        )
    base = _extended(read_file(path), (*opened, path.resolve()), environment)
    merged = merge(base, root)
    lists = [node.at("plugins") for node in (base, root)]
    if all(node is not None and isinstance(node.value, list) for node in lists):
        # a variant adds plugins: the parts that it inherits still need theirs
        items = [
            item for node in lists if node and isinstance(node.value, list) for item in node.value
        ]
        return with_entries(
            merged, {**merged.entries, "plugins": Node(items, root.where, root.folder)}
        )
    return merged


def _with_plugins(
    root: Node, registry: Registry, faults: list[Fault]
) -> tuple[tuple[Path, ...], Registry]:
    node = root.at("plugins")
    if node is None:
        return (), registry
    if not isinstance(node.value, list):
        faults.append(Fault(node.where, "plugins must be a list of Python files."))
        return (), registry
    wheres: dict[Path, str] = {}
    for item in node.value:
        path = (item.folder / Path(str(item.value)).expanduser()).resolve()
        if path.is_file():
            wheres[path] = item.where
        else:
            faults.append(
                Fault(item.where, f"plugins names '{item.value}', but {path} is no file.")
            )
    registry = registry.with_files(wheres)
    for broken in registry.broken:
        where = wheres.get(Path(broken.source.distribution))
        if where is not None:
            faults.append(Fault(where, broken.report))
    return tuple(wheres), registry


def _refuse_unknown_keys(root: Node, resolver: Resolver) -> None:
    for key, node in root.entries.items():
        if key in LATER:
            resolver.faults.append(Fault(node.where, f"section '{key}' is not supported yet."))
        elif key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or "."
            text = f"'{key}' is not a section{hint} Allowed: {', '.join(_KEYS)}."
            resolver.faults.append(Fault(node.where, text))


def _normalised(root: Node) -> Node:
    """Write out the short forms: a bare name, attention for both phases, a relative source."""
    entries = dict(root.entries)
    for key in COMPONENT_SECTIONS:
        node = entries.get(key)
        if node is not None and isinstance(node.value, str):
            entries[key] = Node({"use": node}, node.where, node.folder)
    if "attention" in entries:
        entries["attention"] = by_phase(entries["attention"])
    if "model" in entries:
        entries["model"] = _with_absolute_source(entries["model"])
    return with_entries(root, entries)


def _section(key: str, root: Node, name: str, resolver: Resolver) -> Any:  # noqa: ANN401
    node = root.at(key)
    if node is None or node.value is None:
        if key in REQUIRED:
            where = node.where if node else name
            resolver.faults.append(Fault(where, f"section '{key}' is missing."))
            return None
        node = Node({}, name, root.folder)
    prefill, decode = node.at("prefill"), node.at("decode")
    if key == "attention" and prefill is not None and prefill is decode:
        both = resolver.component("attention", prefill, key)  # once, and not its faults twice
        return {"prefill": both, "decode": both}
    return resolver.section(key, SECTIONS[key], node)


def _with_absolute_source(node: Node) -> Node:
    if isinstance(node.value, str):
        node = Node({"source": node}, node.where, node.folder)
    source = node.at("source")
    if source is None or not isinstance(source.value, str):
        return node
    text, scheme = source.value, ""
    if text.startswith("config:"):
        scheme, text = "config:", text.removeprefix("config:")
    elif _SCHEME.match(text):
        return node
    path = os.path.normpath(source.folder.absolute() / Path(text).expanduser())
    absolute = Node(f"{scheme}{path}", source.where, source.folder, "python")
    return with_entries(node, {**node.entries, "source": absolute})


def _origins(node: Node, path: str) -> Iterator[tuple[str, str]]:
    if path:
        yield path, node.where
    if isinstance(node.value, str):
        yield f"{path}.use", node.where  # if it is the bare name of a component
    if isinstance(node.value, list):
        for index, item in enumerate(node.value):
            yield from _origins(item, f"{path}.{index}")
    for key, child in node.entries.items():
        yield from _origins(child, f"{path}.{key}".lstrip("."))
