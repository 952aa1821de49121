"""`engine check`: everything that is wrong with a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..component import Settings
from ..contracts.command import Command
from ..recipe import add_recipe_arguments, recipe_from_arguments

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..compose.draw import Drawing
    from ..registry import Registry


class Check(Command):
    """Reads a recipe, and fits the parts that it names to each other and to the model."""

    description: ClassVar[str] = """\
Read a recipe, find every component that it names, open the model's files, and print every fault
with the line it stands on: unknown names and fields, parts that do not fit each other, the model or
this machine. No weights are read.

  engine check recipes/quickstart.yaml
  engine check recipes/quickstart.yaml --set cache.memory=1GiB --set model.max_context=2048
  engine check recipes/quickstart.yaml --show        (each value, and where it comes from)
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        parser.add_argument(
            "--show", action="store_true", help="print the whole recipe, each value with its origin"
        )

    def run(self, args: Namespace, registry: Registry) -> int:
        """Print the faults by way of `RecipeError`, or that there are none."""
        recipe = recipe_from_arguments(args, registry)
        from ..compose import draw  # loads torch, which the other commands do without

        drawing = draw(recipe)
        if args.show:
            for path, (value, origin) in recipe.describe().items():
                print(f"{path} = {value!r}  ({origin})")
            print(_cache_line(drawing))
        print(f"{recipe.name}: OK, {len(list(recipe.chosen()))} components")
        return 0


def _cache_line(drawing: Drawing) -> str:
    """Return what a token's keys and values take, and how many tokens fit if that is known."""
    from ..compose.memory import group_page_bytes

    cache, page = drawing.recipe.cache, sum(group_page_bytes(drawing))
    line = f"keys and values: {page / cache.page_tokens:g} bytes a token"
    if cache.memory == "auto":
        return line
    pages = max(0, cache.memory // page - 1)  # one is the null page
    return f"{line}, cache.memory holds {pages * cache.page_tokens} tokens"
