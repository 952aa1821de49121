"""The arguments of every command that works on a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .load import load_recipe, warn_of_broken_plugins

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..registry import Registry
    from .recipe import Recipe


PLAIN = (
    *("attention=reference", "ops=[]", "cache.use=paged", "cache.prefix=false"),
    *("scheduler.use=continuous", "quant.kv=none", "sampling.use=standard"),
    *("engine.depth=0", "engine.graphs=false", "engine.warm_up=off"),
)
"""What `--plain` sets before any `--set`: the plainest component of each kind, a step at a time."""


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Declare the recipe, `--set` and `--plain`."""
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a YAML file, such as recipes/quickstart.yaml"
    )
    add_change_arguments(parser)


def add_change_arguments(parser: ArgumentParser) -> None:
    """Declare `--set` and `--plain` alone, for a recipe that comes from elsewhere."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipe: a.b=VALUE, a.0.b=VALUE, a+=VALUE appends, ~a.b deletes; VALUE is "
        "YAML, and the option may be repeated",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="leave out every optimisation, to find out whether one is at fault; --set counts",
    )


def recipe_from_arguments(args: Namespace, registry: Registry) -> Recipe:
    """Read the recipe that the arguments name, and warn of broken plugins that it does not use.

    Raises:
        RecipeError: The recipe does not compose; all faults at once.
    """
    if args.plain:
        args.overrides[:0], args.plain = PLAIN, False
    recipe = load_recipe(args.recipe, registry, args.overrides)
    warn_of_broken_plugins(recipe)
    return recipe
