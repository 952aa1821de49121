"""Camshaft: a modular LLM inference engine, composed of plugins by a recipe.

Everything named here is public. Importing it loads neither torch nor triton.
"""

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
    add_recipe_arguments,
    load_recipe,
    open_recipe,
    parse_recipe,
    recipe_from_arguments,
    recipe_schema,
)
from .registry import Registry

__all__ = [
    "KINDS",
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
    "Settings",
    "Uses",
    "add_recipe_arguments",
    "hookimpl",
    "load_recipe",
    "open_recipe",
    "parse_recipe",
    "recipe_from_arguments",
    "recipe_schema",
]
