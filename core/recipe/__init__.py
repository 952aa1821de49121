"""Recipes: YAML that names components, read into one validated value."""

from .arguments import add_change_arguments, add_recipe_arguments, recipe_from_arguments
from .load import load_recipe, open_recipe, parse_recipe
from .recipe import Described, Recipe
from .schema import recipe_schema
from .sections import ServerSection

__all__ = [
    "Described",
    "Recipe",
    "ServerSection",
    "add_change_arguments",
    "add_recipe_arguments",
    "load_recipe",
    "open_recipe",
    "parse_recipe",
    "recipe_from_arguments",
    "recipe_schema",
]
