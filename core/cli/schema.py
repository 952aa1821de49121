"""`engine schema`: the JSON schema of recipes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from ..component import Settings
from ..contracts.command import Command
from ..recipe import recipe_schema

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..registry import Registry


class Schema(Command):
    """Prints the JSON schema of recipes with the components that are installed now."""

    description: ClassVar[str] = """\
Print the JSON schema of recipes, the settings of every installed component included. Editors that
know YAML schemas then complete names and show mistakes:

  engine schema > recipe.schema.json
  # first line of a recipe:
  # yaml-language-server: $schema=recipe.schema.json
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """It has none."""

    def run(self, args: Namespace, registry: Registry) -> int:
        """Print it."""
        print(json.dumps(recipe_schema(registry), indent=2))
        return 0
