from __future__ import annotations

from pathlib import Path

from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.lab.bench import Bench
from camshaft.testing.command import CommandContract

TOY = str(Path(__file__).parents[2] / "core" / "cli" / "toy.yaml")
QUICK = ("--warmup", "0", "--set", "engine.executor=null")


class TestContract(CommandContract):
    name = "bench"
    words = (TOY, "--workload", "cpu-single", *QUICK)
    faulty = (
        (TOY, "--workload", "no-such-workload", *QUICK),
        ("no-such-recipe.yaml", "--workload", "cpu-single"),
    )

    def make(self) -> Command:
        return Bench(Settings())
