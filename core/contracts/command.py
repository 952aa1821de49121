"""Command: a subcommand of `engine`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..registry import Registry


class Command(ABC):
    """What `engine NAME` does. Constructed as `Command(settings)` with default settings.

    The component's `name` is the word on the command line and its `summary` the line in
    `engine --help`; the implementation is imported only when the command is used or its own help is
    read, so that `engine --help` stays quick.

    Attributes:
        description: What `engine NAME --help` says above the arguments: what it does, with an
            example.
    """

    description: ClassVar[str] = ""

    @abstractmethod
    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments. A command on a recipe calls `camshaft.add_recipe_arguments`."""

    @abstractmethod
    def run(self, args: Namespace, registry: Registry) -> int:
        """Do it.

        Args:
            args: The parsed arguments.
            registry: The installed plugins, without those that a recipe lists as files;
                `camshaft.recipe_from_arguments` reads the recipe with it.

        Returns:
            The exit code: 0 for success, 1 for a fault that the user can fix.

        Raises:
            CamshaftError: Shown to the user without a traceback; the exit code is 1.
        """
