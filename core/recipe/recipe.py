"""A recipe that was read: every section validated, every component found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ..component import Chosen
from ..errors import Fault, PluginError, RecipeError
from .sections import LISTS, SECTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..registry import Registry
    from .sections import (
        AttentionSection,
        CacheSection,
        EngineSection,
        HardwareSection,
        ModelSection,
        QuantSection,
        SamplingSection,
        SchedulerSection,
        ServerSection,
    )


class Described(NamedTuple):
    """A value of a recipe and where it comes from: `file:line`, `--set a.b` or `default`."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A composed recipe. It mirrors the YAML: `recipe.cache.page_tokens`, `recipe.cache.use`.

    Attributes:
        ops: Providers of fast operations, the last that supports a case wins.
        observers: Who is told what happens.
        plugins: Unpackaged plugins that it loads.
        name: The file's path, or a word for recipes made in Python.
        registry: The plugins that it was read with, its own files included.
        origins: Where each given value was written, by dotted path.
    """

    model: ModelSection
    hardware: HardwareSection
    attention: AttentionSection
    cache: CacheSection
    scheduler: SchedulerSection
    quant: QuantSection
    sampling: SamplingSection
    engine: EngineSection
    server: ServerSection
    ops: tuple[Chosen, ...] = ()
    observers: tuple[Chosen, ...] = ()
    plugins: tuple[Path, ...] = ()
    name: str = field(compare=False)
    registry: Registry = field(compare=False, repr=False)
    origins: Mapping[str, str] = field(compare=False, repr=False)

    def as_mapping(self) -> dict[str, Any]:
        """Return the whole recipe as plain data, defaults included.

        `parse_recipe` reads it back to an equal recipe, in this process or in another.
        """
        plain: dict[str, Any] = {name: _plain(getattr(self, name)) for name in (*SECTIONS, *LISTS)}
        if not self.model.is_random:
            del plain["model"]["seed"]  # it has no effect there, and is refused
        return plain | {"plugins": [str(path) for path in self.plugins]}

    def describe(self) -> dict[str, Described]:
        """Return every value by dotted path, with its origin."""
        return dict(self._leaves(self.as_mapping(), ""))

    def chosen(self) -> Iterator[tuple[str, Chosen]]:
        """Yield every component with its dotted path, nested ones included."""
        for name in (*SECTIONS, *LISTS):
            yield from _chosen(getattr(self, name), name)

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path, or what holds it, was written."""
        while path and path not in self.origins:
            path = path.rpartition(".")[0]
        return self.origins.get(path, self.name)

    def check_implementations(self) -> None:
        """Import the implementation of every component and compare it with its contract.

        Raises:
            RecipeError: Some do not import or lack methods, all of them, with their tracebacks.
        """
        faults = []
        for path, chosen in self.chosen():
            try:
                chosen.component.load()
            except PluginError as error:
                faults.append(Fault(self.origin(path), f"{path}: {error}"))
        if faults:
            raise RecipeError(dict.fromkeys(faults))

    def _leaves(self, value: object, path: str) -> Iterator[tuple[str, Described]]:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                yield from self._leaves(item, f"{path}.{key}".lstrip("."))
        else:
            yield path, Described(value, self.origins.get(path, "default"))


def _plain(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, Chosen):
        return {"use": value.name, **_fields(value.settings)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, BaseModel):
        fields = _fields(value)
        use = fields.pop("use", None)
        named = use if isinstance(use, dict) else {} if use is None else {"use": use}
        return named | fields
    return to_jsonable_python(value)


def _fields(settings: BaseModel) -> dict[str, Any]:
    return {name: _plain(getattr(settings, name)) for name in type(settings).model_fields}


def _chosen(value: object, path: str) -> Iterator[tuple[str, Chosen]]:
    if isinstance(value, Chosen):
        yield path, value
        yield from _chosen(value.settings, path)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _chosen(item, f"{path}.{index}")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            # a section's own component has the section's path: its fields stand beside `use`
            below = path if name == "use" else f"{path}.{name}"
            yield from _chosen(getattr(value, name), below)
