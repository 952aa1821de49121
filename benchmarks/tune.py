"""What splitting steps into nano-batches is predicted to gain, on one device and on eight.

Each case is a call of `engine tune` in a process of its own: operations are measured on the device
at hand, and the best of all splits is compared with one batch. For eight devices one of them runs
its eighth of every layer, and what it sends is calculated from the speed of the link.

Run: python -m benchmarks.tune
     python -m benchmarks.tune --cases "llama-8b" "llama-8b x8" --link-gbs 450
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .results import Figure, new_run, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECIPE = Path(__file__).parent / "recipes" / "llama-8b.yaml"
LLAMA_70B = (
    "model.name=llama-70b",
    "model.config.hidden_size=8192",
    "model.config.intermediate_size=28672",
    "model.config.num_hidden_layers=80",
    "model.config.num_attention_heads=64",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A step.

    Attributes:
        model: Its name.
        decodes: Requests that decode, 1,024 tokens behind each.
        prompts: Of 512 tokens.
        devices: Of the engine.
        overrides: Of the recipe.
    """

    model: str
    decodes: int
    prompts: int
    devices: int = 1
    overrides: Sequence[str] = ()

    @property
    def step(self) -> str:
        """What it holds, in words."""
        return f"{self.decodes} decodes behind 1,024, {self.prompts} prompts of 512"

    def words(self, recipe: Path, link_gbs: float) -> list[str]:
        """Return the arguments of `engine tune`."""
        return [
            str(recipe),
            *(f"--set={one}" for one in self.overrides),
            f"--decodes={self.decodes}",
            "--context=1024",
            f"--prompts={self.prompts}",
            "--prompt-tokens=512",
            f"--tensor-parallel={self.devices}",
            f"--link-gbs={link_gbs}",
            "--json",
        ]


CASES = {
    "llama-8b": Case("llama-8b", 256, 15),
    "llama-8b decodes": Case("llama-8b", 448, 3),
    "llama-8b x8": Case("llama-8b", 960, 14, 8),
    "llama-70b x8": Case("llama-70b", 960, 14, 8, LLAMA_70B),
}


def tuned(words: Sequence[str]) -> dict[str, Any]:
    """Return what `engine tune` found.

    Raises:
        SystemExit: It failed; what it said stands on standard error.
    """
    command = [sys.executable, "-m", "camshaft", "tune", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(run: str, name: str, case: Case, found: dict[str, Any]) -> Iterator[Figure]:
    """Yield what a case found."""
    split, whole = found["split"], found["one batch"]
    shares = "/".join(f"{share:g}" for share in split["shares"])
    best = f"nano_batch by {split['by']} {shares}".strip()

    def figure(recipe: str, metric: str, unit: str, value: float) -> Figure:
        return Figure(
            run_id=run,
            bench="tune",
            model=case.model,
            workload=f"{name}: {case.step}",
            recipe=recipe,
            engine="camshaft",
            device=found["tune"].partition(" on ")[2],
            metric=metric,
            unit=unit,
            repeats=[value],
        )

    for recipe, step in (("one batch", whole), (best, split)):
        yield figure(recipe, "predicted_step_ms", "ms", step["ms"])
        for resource, busy in step["busy_ms"].items():
            yield figure(recipe, f"{resource}_busy_ms", "ms", busy)
        yield figure(recipe, "host_ms", "ms", step["host_ms"])
    yield figure(best, "predicted_gain", "share", found["steps"][-1]["gain"])
    yield figure(best, "minimum_tokens", "tokens", found["minimum_tokens"] or 0)
    yield figure("measured", "step_ms", "ms", found["measured_ms"])
    yield figure("measured", "overlap", "share of the shorter", found["overlap"])
    for one in found["operations"]:
        yield figure(f"{one['operation']}, {one['bound']}", "operation_ms", "ms", one["ms"])


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--link-gbs", type=float, default=450.0, help="NVLink 4 by default")
    arguments = parser.parse_args()
    run = new_run("tune")
    for name in arguments.cases:
        case = CASES[name]
        found = tuned(case.words(arguments.recipe, arguments.link_gbs))
        write(list(figures(run, name, case, found)), "tune")


if __name__ == "__main__":
    main()
