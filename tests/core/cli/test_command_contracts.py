from __future__ import annotations

from pathlib import Path

from camshaft.cli.check import Check
from camshaft.cli.plugins import Plugins
from camshaft.cli.schema import Schema
from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.testing.command import CommandContract

MISSING = ("no-such-recipe.yaml",)


class TestPlugins(CommandContract):
    name = "plugins"

    def make(self) -> Command:
        return Plugins(Settings())


class TestSchema(CommandContract):
    name = "schema"

    def make(self) -> Command:
        return Schema(Settings())


class TestCheck(CommandContract):
    name = "check"
    words = (str(Path(__file__).with_name("toy.yaml")),)
    faulty = (MISSING, (*words, "--set", "cache.pages=3"), (*words, "--set", "scheduler=none"))

    def make(self) -> Command:
        return Check(Settings())
