from __future__ import annotations

from pathlib import Path

from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.serving.run import Run
from camshaft.plugins.serving.serve import Serve
from camshaft.testing.command import CommandContract

TOY = str(Path(__file__).parents[2] / "core" / "cli" / "toy.yaml")
NOT_THERE = "no-such-recipe.yaml"


class TestRun(CommandContract):
    name = "run"
    words = (TOY, "--prompt", "abc", "--max-tokens", "2")
    faulty = (
        (NOT_THERE, "--prompt", "abc"),
        (TOY, "--prompt", "abc", "--set", "cache.pages=3"),
        (TOY, "--prompt", "a" * 600),
    )

    def make(self) -> Command:
        return Run(Settings())


class TestServe(CommandContract):
    name = "serve"
    words = None
    faulty = ((NOT_THERE,), (TOY, "--port", "70000"), (TOY, "--host", "no.such.host.invalid"))

    def make(self) -> Command:
        return Serve(Settings())
