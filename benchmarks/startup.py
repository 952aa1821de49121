"""How long a recipe takes from the start of a process to its first token, and where the time goes.

Every run is a process of its own. `cold` finds no compiled kernels, `cached` finds those of the run
before it; where torch was installed without bytecode for Python, that is among them. After the
first token, requests of many lengths and parameters are run: what is compiled or loaded for them
was not ready, and is counted.

Run: python -m benchmarks.startup --recipe llama-8b
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .results import Figure, new_run, write

if TYPE_CHECKING:
    from camshaft.compose import Composed
    from camshaft.loop.engine import Engine
    from camshaft.request import Request

RECIPES = Path(__file__).parent / "recipes"
PROMPT = 128
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
BYTECODE = "PYTHONPYCACHEPREFIX"
REQUESTS = 32


class Clock:
    """Seconds between marks, since the process was started."""

    def __init__(self, begun: float) -> None:
        self.phases: dict[str, float] = {}
        self._begun = self._last = begun
        self._phase = "python"

    def mark(self, phase: str) -> None:
        """End the phase that runs, and begin another."""
        now = time.time()
        self.phases[self._phase] = self.phases.get(self._phase, 0.0) + now - self._last
        self._phase, self._last = phase, now

    @property
    def total(self) -> float:
        """Seconds until the last mark."""
        return self._last - self._begun


class Compilations:
    """Kernels of Triton that were compiled, or loaded from its cache."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.loaded: list[str] = []
        if find_spec("triton") is not None:
            from triton import knobs

            knobs.compilation.listener = self._note

    def _note(self, *, src: Any, cache_hit: bool, **_: object) -> None:  # noqa: ANN401
        (self.loaded if cache_hit else self.compiled).append(str(src.name))

    def clear(self) -> None:
        """Forget them."""
        self.compiled.clear()
        self.loaded.clear()


def start(recipe: Path, overrides: list[str], begun: float) -> dict[str, Any]:
    """Start an engine in this process, and report.

    Args:
        recipe: Its file.
        overrides: Changes to it.
        begun: When the process was started, seconds of the epoch.
    """
    clock = Clock(begun)
    clock.mark("imports")
    from camshaft import open_recipe
    from camshaft.compose import compose, spare_the_collector

    kernels = Compilations()
    clock.mark("recipe")
    composed = compose(open_recipe(recipe, overrides), progress=clock.mark)
    spare_the_collector()
    clock.mark("first token")
    ready_s = clock.total
    compiled_before = len(kernels.compiled)
    kernels.clear()
    engine = composed.engine
    engine.submit(_request("first", random.Random(0), composed, PROMPT, 3))
    _until_output(engine)
    clock.mark("second token")
    first_token_s = clock.total
    for phase in ("third token", "more requests"):
        _until_output(engine)
        clock.mark(phase)
    late = _run_more(composed)
    clock.mark("end")
    engine.close()
    return {
        "device": composed.info.device,
        "model": composed.info.model,
        "ready_s": ready_s,
        "first_token_s": first_token_s,
        "phases": clock.phases,
        "compiled_before_ready": compiled_before,
        "compiled_after_ready": kernels.compiled,
        "loaded_after_ready": kernels.loaded,
        "slowest_step_ms": late,
    }


def _until_output(engine: Engine) -> None:
    while engine.has_work and not engine.step():
        pass


def _run_more(composed: Composed) -> float:
    """Run requests of many lengths and parameters; return the longest step in milliseconds."""
    chance, engine, slowest = random.Random(1), composed.engine, 0.0
    longest = min(3000, composed.info.room // 2)
    for number in range(REQUESTS):
        prompt, outputs = chance.randint(1, longest), chance.randint(1, 32)
        engine.submit(_request(f"more{number}", chance, composed, prompt, outputs))
    while engine.has_work:
        begun = time.perf_counter()
        engine.step()
        slowest = max(slowest, time.perf_counter() - begun)
    return slowest * 1e3


def _request(
    name: str, chance: random.Random, composed: Composed, prompt: int, outputs: int
) -> Request:
    """Return a request; but for the first, every other one draws its tokens."""
    from camshaft.request import Request, SamplingParams, TokenSpan

    ids = [
        chance.randrange(composed.info.vocab) for _ in range(min(prompt, composed.info.room // 2))
    ]
    draws = name != "first" and chance.random() < 0.5
    params = SamplingParams(
        max_tokens=outputs,
        temperature=0.8 if draws else 0.0,
        top_p=0.9 if draws else 1.0,
        ignore_eos=True,
    )
    return Request(id=name, spans=(TokenSpan(ids),), params=params)


def run_child(recipe: Path, overrides: list[str], caches: str) -> dict[str, Any]:
    """Start an engine in a new process, whose compilers keep their results in folder `caches`."""
    names: tuple[str, ...] = CACHES
    environment = dict(os.environ)
    if not _has_bytecode("torch"):
        names = (*CACHES, BYTECODE)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {name: f"{caches}/{name.lower()}" for name in names}
    words = [sys.executable, "-m", "benchmarks.startup", "--recipe", str(recipe)]
    words += [word for one in overrides for word in ("--set", one)]
    done = subprocess.run(
        [*words, "--begun", repr(time.time())],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _has_bytecode(package: str) -> bool:
    """Return whether a package need not be compiled when it is imported: 2 s for torch."""
    found = find_spec(package)
    return found is None or found.cached is None or Path(found.cached).exists()


def main() -> None:
    """Run cold, then cached; or be one of these runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="llama-8b", help="a file, or a name in recipes/ here")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--repeats", type=int, default=3, help="cached runs")
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = Path(arguments.recipe)
    recipe = path if path.suffix else RECIPES / f"{path}.yaml"
    if arguments.begun is not None:
        print(json.dumps(start(recipe, arguments.set, arguments.begun)))
        return
    run = new_run("startup")
    with tempfile.TemporaryDirectory() as caches:
        cold = [run_child(recipe, arguments.set, caches)]
        cached = [run_child(recipe, arguments.set, caches) for _ in range(arguments.repeats)]
    for workload, reports in (("cold", cold), ("cached", cached)):
        write(figures(run, workload, recipe.name, reports), "startup")
        names = sorted({name for one in reports for name in one["compiled_after_ready"]})
        if names:
            print(f"{workload}: compiled after ready: {', '.join(names)}")


def figures(run: str, workload: str, recipe: str, reports: list[dict[str, Any]]) -> list[Figure]:
    """Return the figures of some runs: totals, phases, and what came late."""
    values: dict[tuple[str, str], list[float]] = {}
    for one in reports:
        rows = {("first_token_s", "s"): one["first_token_s"], ("ready_s", "s"): one["ready_s"]}
        for phase, seconds in one["phases"].items():
            rows[f"phase: {phase}", "s"] = seconds
        rows["slowest_step", "ms"] = one["slowest_step_ms"]
        for metric in ("compiled_after_ready", "loaded_after_ready"):
            rows[metric, "kernels"] = len(one[metric])
        for key, value in rows.items():
            values.setdefault(key, []).append(round(value, 4))
    return [
        Figure(
            run_id=run,
            bench="startup",
            model=reports[0]["model"],
            workload=workload,
            recipe=recipe,
            engine="camshaft",
            device=reports[0]["device"],
            metric=metric,
            unit=unit,
            repeats=every,
        )
        for (metric, unit), every in values.items()
    ]


if __name__ == "__main__":
    main()
