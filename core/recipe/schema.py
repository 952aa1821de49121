"""The JSON schema of recipes, for editors: it knows the components that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .resolve import uses_of
from .sections import COMPONENT_SECTIONS, LISTS, REQUIRED, SECTIONS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ..component import Component
    from ..registry import Registry

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema(registry: Registry) -> dict[str, Any]:
    """Return a JSON schema that accepts the recipes which `load_recipe` accepts.

    It is wider in two places: text may hold `${NAME}` where a number is due, and what a settings
    model checks in Python code is not seen.
    """
    schema = _Schema(registry)
    properties: dict[str, Any] = {
        "extends": {"type": "string", "description": "A recipe that this one varies."},
        "plugins": {"type": "array", "items": {"type": "string"}},
    }
    properties |= {name: schema.section(name) for name in SECTIONS}
    properties |= {
        name: {"type": "array", "items": schema.component(kind)} for name, kind in LISTS.items()
    }
    return {
        "$schema": _DRAFT,
        "title": "A camshaft recipe",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "anyOf": [{"required": list(REQUIRED)}, {"required": ["extends"]}],
        "$defs": schema.definitions,
    }


class _Schema:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.definitions: dict[str, Any] = {}

    def section(self, name: str) -> dict[str, Any]:
        """Return the schema of a section."""
        model = SECTIONS[name]
        fields, _ = self._fields(model)
        if name == "attention":
            pair = _object(fields)
            return {"anyOf": [pair, self.component("attention")]}
        uses = uses_of(model.model_fields["use"]) if "use" in model.model_fields else None
        if uses is None:
            return _object(fields)
        fields.pop("use")
        forms = [_object(self._settings(item) | fields) for item in self._components(uses.kind)]
        forms.append(_object(fields | ({"use": {"const": "auto"}} if name == "model" else {})))
        if name in COMPONENT_SECTIONS:
            forms.append({"enum": [item.name for item in self._components(uses.kind)]})
        elif name == "model":
            forms.append({"type": "string"})
        return {"anyOf": forms}

    def component(self, kind: str) -> dict[str, Any]:
        """Return a reference to the schema of `name` or `{use: name, ...}`."""
        key = f"component.{kind}"
        if key not in self.definitions:
            self.definitions[key] = {}  # in place before it is filled: components nest
            items = self._components(kind)
            forms = [_object(self._settings(item), required=["use"]) for item in items]
            names = {"enum": [item.name for item in items]}
            self.definitions[key] = {"anyOf": [names, *forms]}
        return {"$ref": f"#/$defs/{key}"}

    def _components(self, kind: str) -> list[Component]:
        return self._registry.components(kind)

    def _settings(self, component: Component) -> dict[str, Any]:
        use = {"const": component.name, "description": component.summary}
        return {"use": use} | self._fields(component.settings)[0]

    def _fields(self, model: type[BaseModel]) -> tuple[dict[str, Any], list[str]]:
        """Return the properties of a settings model and the names of the required ones."""
        prefix = f"{model.__module__}.{model.__qualname__}"
        schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
        for name, definition in schema.get("$defs", {}).items():
            self.definitions[f"{prefix}.{name}"] = definition
        properties: dict[str, Any] = schema.get("properties", {})
        for name, field in model.model_fields.items():
            uses = uses_of(field)
            if uses is not None:
                one = self.component(uses.kind) if name != "use" else {}
                properties[name] = _holding(one, field.default) | _described(field.description)
        return properties, schema.get("required", [])


def _holding(one: dict[str, Any], default: object) -> dict[str, Any]:
    if isinstance(default, tuple):
        return {"type": "array", "items": one}
    return {"anyOf": [one, {"type": "null"}]} if default is None else one


def _described(text: str | None) -> dict[str, str]:
    return {"description": text} if text else {}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return schema | ({"required": required} if required else {})
