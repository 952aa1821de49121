"""Camshaft: a modular LLM inference engine, composed of plugins by a recipe.

Everything named here is public. Importing it loads neither torch nor triton.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .component import Chosen, Component, Settings, Uses
from .errors import (
    CamshaftError,
    CheckpointError,
    DeviceError,
    Fault,
    PluginError,
    RecipeError,
    RequestError,
)
from .facts import Capability, DeviceFacts
from .hooks import hookimpl
from .kinds import KINDS, Kind
from .recipe import (
    Recipe,
    add_change_arguments,
    add_recipe_arguments,
    load_recipe,
    open_recipe,
    parse_recipe,
    recipe_from_arguments,
    recipe_schema,
)
from .registry import Registry

if TYPE_CHECKING:
    from camshaft.generate.llm import LLM

    from .request import SamplingParams

__all__ = [
    "KINDS",
    "LLM",
    "CamshaftError",
    "Capability",
    "CheckpointError",
    "Chosen",
    "Component",
    "DeviceError",
    "DeviceFacts",
    "Fault",
    "Kind",
    "PluginError",
    "Recipe",
    "RecipeError",
    "Registry",
    "RequestError",
    "SamplingParams",
    "Settings",
    "Uses",
    "add_change_arguments",
    "add_recipe_arguments",
    "hookimpl",
    "load_recipe",
    "open_recipe",
    "parse_recipe",
    "recipe_from_arguments",
    "recipe_schema",
]

_ON_USE = {"LLM": ".generate.llm", "SamplingParams": ".request"}
"""Names whose modules are imported only when they are asked for."""


def __getattr__(name: str) -> object:
    if name not in _ON_USE:
        raise AttributeError(f"module 'camshaft' has no attribute '{name}'")
    return getattr(import_module(_ON_USE[name], __name__), name)
