"""What a plugin hands over: light descriptions of components, never the components themselves."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import core_schema

from .errors import PluginError
from .kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler


class Settings(BaseModel):
    """Settings of one component: frozen, strict about names, documented by attribute docstrings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Uses:
    """Marks a settings field that holds other components.

    Annotate the whole field, in one of three forms:

        over: Annotated[Chosen, Uses("cache")]
        grammar: Annotated[Chosen | None, Uses("grammar")] = None
        processors: Annotated[tuple[Chosen, ...], Uses("processor")] = ()

    In YAML each component is written as in a section: `name` or `{use: name, ...}`.

    Attributes:
        kind: The kind of component that the field takes.
        default: The name chosen where a recipe leaves the field out; None leaves that to the field.
    """

    kind: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """The description of one component.

    Attributes:
        kind: One of `camshaft.KINDS`.
        name: What a recipe calls it; unique within the kind.
        implementation: `package.module:Class`, imported only when a recipe uses it. The class is
            called with `(settings, ...)`; what follows is stated by the contract of its kind.
        settings: Its pydantic model.
        summary: One line for `engine plugins`.
        api_version: The contract version that it was written for.
        needs: Capabilities it needs from the device, a closed set (`camshaft.Capability`).
        distribution: Who offers it: the distribution's name, or the path of an unpackaged file.
            Filled in by the registry, like `version`.
        version: Version of that distribution; empty for a file.
    """

    kind: str
    name: str
    implementation: str
    settings: type[Settings] = Settings
    summary: str = ""
    api_version: int = 0
    needs: frozenset[str] = frozenset()
    distribution: str = ""
    version: str = ""

    @property
    def origin(self) -> str:
        """`scheduler 'fcfs' of acme 1.2`: how messages name this component."""
        owner = f" of {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"{self.kind} '{self.name}'{owner}"

    def settings_schema(self, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
        """Return the JSON schema of its settings.

        Raises:
            PluginError: The settings hold a type that has none.
        """
        try:
            return self.settings.model_json_schema(ref_template=ref_template)
        except PydanticInvalidForJsonSchema as error:
            raise PluginError(
                f"{self.origin} has settings without a JSON schema: {error.message}. Its author "
                "must take plain types, or give the field one with pydantic.WithJsonSchema."
            ) from error

    def load(self) -> Any:  # noqa: ANN401 - the contract check below narrows it
        """Import the implementation and check it against the contract of its kind.

        Raises:
            PluginError: The import fails, or the class lacks methods of the contract. The message
                carries the plugin's own traceback.
        """
        implementation = _resolve(self.implementation, self.origin)
        contract = _resolve(KINDS[self.kind].contract, f"the contract of '{self.kind}'")
        missing = missing_methods(implementation, contract)
        if missing:
            raise PluginError(
                f"{self.origin} ({self.implementation}) lacks {', '.join(missing)}, "
                f"which {contract.__name__} requires."
            )
        return implementation


@dataclass(frozen=True, slots=True)
class Chosen:
    """A component that a recipe chose, with its validated settings."""

    component: Component
    settings: Any

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Let settings hold chosen components; a recipe resolves them before it validates."""
        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Leave the place open: only a recipe's schema knows the components that fit."""
        return {}

    @property
    def name(self) -> str:
        """What the recipe calls it."""
        return self.component.name

    def build(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Import the implementation and construct it with its settings first."""
        return self.component.load()(self.settings, *args, **kwargs)


def missing_methods(implementation: object, contract: type) -> list[str]:
    """Return the abstract methods of `contract` that `implementation` does not define."""
    required: Iterable[str] = sorted(getattr(contract, "__abstractmethods__", ()))
    missing = []
    for name in required:
        method = getattr(implementation, name, None)
        if method is None or getattr(method, "__isabstractmethod__", False):
            missing.append(name)
    return missing


def _resolve(path: str, owner: str) -> Any:  # noqa: ANN401
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", module_name.partition(".")[0]):  # a part of the plugin itself
            raise _broken(path, owner) from error
        raise PluginError(
            f"{owner} needs the Python package '{missing}', which is not installed. Install it, or "
            "name another."
        ) from error
    except (Exception, SystemExit) as error:  # a module that exits must not take the engine along
        raise _broken(path, owner) from error


def _broken(path: str, owner: str) -> PluginError:
    """Return an error with the traceback of the exception at hand."""
    return PluginError(
        f"{owner} did not load from '{path}'. Repair or uninstall it, or name another.\n"
        f"{traceback.format_exc().rstrip()}"
    )
