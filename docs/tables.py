"""The tables of these pages that follow from the code, so that they cannot go stale.

Run: python -m docs.tables (as `make fix` does). Between a line `<!-- table: NAME -->` and the next
`<!-- end -->` of a page stands what the function for NAME returns; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from camshaft import KINDS, Registry
from camshaft.recipe.resolve import uses_of
from camshaft.recipe.sections import SECTIONS, ExecutorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PAGES = Path(__file__).parent
_PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def sections() -> str:
    """Return a table for each section of a recipe."""
    parts = []
    for name, model in SECTIONS.items():
        parts.append(_part(name, model))
        if name == "engine":
            parts.append(_part("engine.executor", ExecutorSettings))
    return "\n\n".join(parts)


def components() -> str:
    """Return what comes with camshaft for recipes, and the settings of what has some."""
    ours = [one for one in Registry.discover().components() if one.distribution == "camshaft"]
    items = [one for one in ours if one.kind != "command"]
    rows = [(f"`{one.kind}`", f"`{one.name}`", one.summary) for one in items]
    settings = [
        f"Settings of {one.kind} `{one.name}`:\n\n{_fields(one.settings)}"
        for one in items
        if one.settings.model_fields
    ]
    return "\n\n".join([_table(("kind", "name", "what it is"), rows), *settings])


def kinds() -> str:
    """Return the kinds of component, each with its example, contract and contract tests."""
    rows = []
    for kind in KINDS.values():
        module, _, name = kind.contract.partition(":")
        path = f"core/contracts/{module.rpartition('.')[2]}.py"
        tests = f"`testing.{kind.name}.{name.removesuffix('Backend')}Contract`"
        rows.append(
            (f"[`{kind.name}`](#{kind.name})", kind.summary, f"[`{name}`](../{path})", tests)
        )
    return _table(("kind", "decides", "contract", "tests to inherit"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "sections": sections,
    "components": components,
    "kinds": kinds,
}


def renewed(page: str) -> str:
    """Return a page with its tables as the code has them now."""
    return _PLACE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", page)


def _part(name: str, model: type[BaseModel]) -> str:
    return f"### `{name}`\n\n{_words(model.__doc__)}\n\n{_fields(model, name)}"


def _fields(model: type[BaseModel], path: str = "") -> str:
    rows = [
        (f"`{name}`", _allowed(field, path), _default(field), _words(field.description))
        for name, field in model.model_fields.items()
    ]
    return _table(("field", "takes", "default", "meaning"), rows)


def _allowed(field: FieldInfo, path: str) -> str:
    uses = uses_of(field)
    if uses is not None:
        many = isinstance(field.default, tuple)
        named = "components" if many else "a component"
        auto = ", or `auto`" if path == "model" else ""
        return f"{named} of kind `{uses.kind}`{auto}"
    if field.annotation is ExecutorSettings:
        return "a name, or the fields below"
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    return _described(TypeAdapter(annotation).json_schema())


def _described(schema: dict[str, Any]) -> str:
    """Say what a JSON schema allows, in a few words."""
    if "anyOf" in schema:
        words = dict.fromkeys(_described(one) for one in schema["anyOf"])
        of_size = {"a whole number", "text"}
        if of_size <= set(words):
            words = dict.fromkeys(("a size such as `2GiB`", *words))
            words = {word: None for word in words if word not in of_size}
        return " or ".join(word for word in words if word != "null")
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    names = {
        "boolean": "`true`, `false`",
        "string": "text",
        "object": "a mapping",
        "array": "a list",
    }
    if schema.get("format") in {"path", "file-path", "directory-path"}:
        return "a path"
    kind: str = schema.get("type", "")
    if kind not in {"integer", "number"}:
        return names.get(kind, kind)
    return f"{'a whole number' if kind == 'integer' else 'a number'}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "exclusiveMaximum": "below {}",
    }
    found = [text.format(schema[key]) for key, text in words.items() if key in schema]
    return f" {' '.join(found)}" if found else ""


def _default(field: FieldInfo) -> str:
    uses = uses_of(field)
    if uses is not None and uses.default is not None:
        return f"`{uses.default}`"
    if field.is_required():
        return "(required)"
    value: Any = field.default
    if value and type(value) is int and value % 2**20 == 0:
        return f"`{value // 2**20}MiB`"
    if isinstance(value, ExecutorSettings):
        return f"`{value.use}`"
    if value in (None, "", ()):
        return "none"
    value = list(value) if isinstance(value, tuple) else value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _words(text: str | None) -> str:
    return " ".join((text or "").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Renew the tables of every page."""
    for path in PAGES.glob("*.md"):
        page = path.read_text(encoding="utf-8")
        path.write_text(renewed(page), encoding="utf-8")


if __name__ == "__main__":
    main()
