"""The arguments of every command that works on a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .load import load_recipe, warn_of_broken_plugins

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..registry import Registry
    from .recipe import Recipe


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Declare the recipe and `--set`."""
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a YAML file, such as recipes/quickstart.yaml"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipe: a.b=VALUE, a.0.b=VALUE, a+=VALUE appends, ~a.b deletes; VALUE is "
        "YAML, and the option may be repeated",
    )


def recipe_from_arguments(args: Namespace, registry: Registry) -> Recipe:
    """Read the recipe that the arguments name, and warn of broken plugins that it does not use.

    Raises:
        RecipeError: The recipe does not compose; all faults at once.
    """
    recipe = load_recipe(args.recipe, registry, args.overrides)
    warn_of_broken_plugins(recipe)
    return recipe
