"""From tree to settings: names become components, values are checked, faults get their line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ..component import Chosen, Settings, Uses
from ..errors import Fault, PluginError, did_you_mean
from .tree import Node

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from ..registry import Registry
    from .sections import Section

S = TypeVar("S", bound=Settings)

_NO_INPUT = {"extra_forbidden", "missing", "value_error"}  # the sentence tells it, or there is none
_FAILED = object()  # stands for a part that has a fault already


class Resolver:
    """Resolves one recipe and collects every fault in `faults`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.faults: list[Fault] = []

    def section(self, name: str, model: type[Section], node: Node) -> Section | None:
        """Validate a section; where it uses a component, that too."""
        if not isinstance(node.value, dict):
            self._fault(node, f"{name} must be a mapping such as `{name}: {{...}}`.")
            return None
        entries = dict(node.entries)
        preset: dict[str, Any] = {}
        uses = uses_of(model.model_fields["use"]) if "use" in model.model_fields else None
        if uses is not None:
            own = {key: child for key, child in entries.items() if key not in model.model_fields}
            use = entries.pop("use", None)
            entries = {key: child for key, child in entries.items() if key not in own}
            preset["use"] = self._used(uses, use, own, name, node, frozenset(model.model_fields))
        return self.fill(model, entries, name, node, f"section '{name}'", preset)

    def component(self, kind: str, node: Node, path: str) -> object:
        """Resolve `name` or `{use: name, ...}`; a part with a fault is a marker, not None."""
        if isinstance(node.value, str):
            return self._choose(kind, node, {}, path, node, frozenset())
        entries = dict(node.entries)
        use = entries.pop("use", None)
        if use is None or not isinstance(use.value, str):
            self._fault(node, f"{path} names no {kind}; write `name` or `{{use: name, ...}}`.")
            return _FAILED
        return self._choose(kind, use, entries, path, node, frozenset())

    def components(self, kind: str, node: Node, path: str) -> object:
        """Resolve a list of components."""
        if not isinstance(node.value, list):
            self._fault(node, f"{path} must be a list of {kind} components.")
            return _FAILED
        found = [
            self.component(kind, child, f"{path}.{index}") for index, child in enumerate(node.value)
        ]
        return _FAILED if _FAILED in found else tuple(found)

    def fill(
        self,
        model: type[S],
        entries: Mapping[str, Node],
        path: str,
        place: Node,
        owner: str,
        preset: Mapping[str, object] | None = None,
    ) -> S | None:
        """Validate entries as a settings model, resolving the components that it holds."""
        values = dict(preset or {})
        for name, field in model.model_fields.items():
            if name in values:
                continue
            uses = uses_of(field)
            node = entries.get(name)
            if uses is not None and node is None and uses.default is not None:
                node = Node(uses.default, place.where, place.folder, "python")
            if node is not None:
                below = f"{path}.{name}"
                values[name] = node.plain if uses is None else self._field(uses, field, node, below)
        self._refuse_unknown(entries, model, path, owner)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            tree = Node(dict(entries), place.where, place.folder)
            failed = {name for name, value in values.items() if value is _FAILED}
            self._explain(error, model, tree, path, failed, place)
            return None

    def _field(self, uses: Uses, field: FieldInfo, node: Node, path: str) -> object:
        if isinstance(field.default, tuple):
            return self.components(uses.kind, node, path)
        if node.value is None and field.default is None:
            return None
        return self.component(uses.kind, node, path)

    def _used(
        self,
        uses: Uses,
        use: Node | None,
        own: Mapping[str, Node],
        path: str,
        place: Node,
        reserved: frozenset[str],
    ) -> object:
        """Resolve the component of a section from `use` and the fields beside it."""
        if use is None and uses.default is not None:
            use = Node(uses.default, place.where, place.folder, "python")
        if use is None and uses.kind != "model":
            known = ", ".join(item.name for item in self._registry.components(uses.kind))
            self._fault(place, f"{path}.use is missing; known: {known or '(nothing installed)'}.")
            return _FAILED
        if use is None or use.value == "auto":
            for key, node in own.items():
                known_fields = reserved - {"use"}
                self._fault(node, _unknown(f"{path}.{key}", key, f"section '{path}'", known_fields))
            return "auto"
        if not isinstance(use.value, str):
            self._fault(use, f"{path}.use must be the name of a {uses.kind}.")
            return _FAILED
        return self._choose(uses.kind, use, own, path, place, reserved - {"use"})

    def _choose(
        self,
        kind: str,
        use: Node,
        entries: Mapping[str, Node],
        path: str,
        place: Node,
        reserved: frozenset[str],
    ) -> object:
        try:
            component = self._registry.get(kind, str(use.value))
        except PluginError as error:
            self._fault(use, f"{path}: {error}")
            return _FAILED
        taken = sorted(reserved & set(component.settings.model_fields))
        if taken:
            self._fault(
                use,
                f"{component.origin} has settings {', '.join(taken)}, which belong to "
                f"the section '{path}'; its author must rename them.",
            )
            return _FAILED
        self._refuse_unknown(entries, component.settings, path, f"'{component.name}'", reserved)
        known = {
            key: node for key, node in entries.items() if key in component.settings.model_fields
        }
        settings = self.fill(component.settings, known, path, place, f"'{component.name}'")
        return _FAILED if settings is None else Chosen(component, settings)

    def _refuse_unknown(
        self,
        entries: Mapping[str, Node],
        model: type[BaseModel],
        path: str,
        owner: str,
        also: Collection[str] = (),
    ) -> None:
        allowed = {*model.model_fields, *also}
        for key, node in entries.items():
            if key not in allowed:
                self._fault(node, _unknown(f"{path}.{key}", key, owner, allowed))

    def _explain(
        self,
        error: ValidationError,
        model: type[BaseModel],
        tree: Node,
        path: str,
        failed: set[str],
        place: Node,
    ) -> None:
        """Turn pydantic's errors into faults; those of a union are one fault."""
        grouped: dict[tuple[str, str, str], list[str]] = {}
        for detail in error.errors(include_url=False):
            steps = list(detail["loc"])
            if steps and steps[0] in failed:
                continue  # reported already
            node, dotted = tree, path
            while steps and (child := node.at(steps[0])) is not None:
                dotted, node = f"{dotted}.{steps.pop(0)}", child
            where = place.where if node is tree else node.where
            text = _sentence(detail, model)
            given = "" if detail["type"] in _NO_INPUT else f", not {detail['input']!r:.80}"
            if detail["type"] == "missing":
                dotted = ".".join([dotted, *map(str, steps)])
            grouped.setdefault((where, dotted, given), []).append(text)
        for (where, dotted, given), texts in grouped.items():
            said = " or ".join(dict.fromkeys(texts))
            self.faults.append(Fault(where, f"{dotted} {said}{given}."))

    def _fault(self, node: Node, text: str) -> None:
        self.faults.append(Fault(node.where, text))


def uses_of(field: FieldInfo) -> Uses | None:
    """Return the mark of a field that holds components."""
    return next((mark for mark in field.metadata if isinstance(mark, Uses)), None)


def _unknown(dotted: str, key: str, owner: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    hint = did_you_mean(key, names) or "."
    listed = ", ".join(names) or "(no settings)"
    return f"{dotted} is not a setting of {owner}{hint} Allowed: {listed}."


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    if detail["type"] == "extra_forbidden":
        nested = _model_at(model, detail["loc"][:-1])
        names = sorted(nested.model_fields) if nested else []
        hint = did_you_mean(str(detail["loc"][-1]), names) or "."
        return f"is not a setting{hint} Allowed: {', '.join(names)}"
    if detail["type"] == "missing":
        return "is missing"
    if detail["type"] == "value_error":
        return f"is wrong: {detail['msg'].removeprefix('Value error, ')}"
    return detail["msg"].removeprefix("Input ")


def _model_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the settings model that lies at a location inside another."""
    for step in location:
        field = model.model_fields.get(str(step))
        if field is None:
            continue  # an index, or pydantic's name for the branch of a union
        candidates = (field.annotation, *get_args(field.annotation))
        inner = [one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model
