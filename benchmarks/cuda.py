"""The GPU workloads on one CUDA device, through the engine's own loop.

Token ids are random, EOS is ignored, decoding is greedy, weights are random bfloat16, the prefix
cache starts cold in every run. The first run warms up and is not counted. After each workload,
answers of 8 requests of the last run are compared with an eager reference, and the card's clocks,
power and temperature are recorded as they were before the measured runs and right after them.

Run: python -m benchmarks.cuda --recipes qwen3-0.6b
     python -m benchmarks.cuda --recipes llama-8b
     python -m benchmarks.cuda --set engine.deterministic=true --set attention=invariant
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from camshaft import open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.rates import measured_rates
from camshaft.plugins.lab.workloads import jobs

from .card import QUERIES, card_state
from .eager import NEAR_TIE, Checked, Eager, check_some
from .results import Figure, new_run, write

if TYPE_CHECKING:
    from camshaft.compose import Composed
    from camshaft.plugins.lab.measure import Measurement
    from camshaft.plugins.lab.workloads import Job

WORKLOADS = ("single", "mixed", "prefill", "shared", "burst", "long")
RECIPES = Path(__file__).parent / "recipes"


class Book:
    """Writes figures of one run."""

    def __init__(self) -> None:
        self._run = new_run("cuda")
        self._card = torch.cuda.get_device_name()

    def write(
        self,
        where: tuple[str, str, str],
        metric: str,
        unit: str,
        repeats: Sequence[float],
        value: float | None = None,
    ) -> None:
        """Write a figure; `where` is model, workload and recipe."""
        model, workload, recipe = where
        figure = Figure(
            run_id=self._run,
            bench="cuda",
            model=model,
            workload=workload,
            recipe=recipe,
            engine="camshaft",
            device=self._card,
            metric=metric,
            unit=unit,
            repeats=[round(one, 4) for one in repeats],
            value=value,
        )
        write([figure], "cuda")


def main() -> None:
    """Run every workload of every recipe; a figure a line."""
    arguments = _arguments()
    book = Book()
    rates = measured_rates("cuda")
    card = ("none", "card", "none")
    book.write(card, "copy_tb_s", "TB/s", [rates.copy_bytes_s / 1e12])
    book.write(card, "read_tb_s", "TB/s", [rates.read_bytes_s / 1e12])
    book.write(card, "gemm_tflop_s", "TFLOP/s", [rates.gemm_flop_s / 1e12])
    torch.cuda.empty_cache()
    faults: list[str] = []
    for name in arguments.recipes:
        faults += _run_recipe(name, arguments, book)
        gc.unfreeze()  # or the pages of this engine would outlive it, as part of a cycle
        gc.collect()
        torch.cuda.empty_cache()
    if faults:
        raise SystemExit("\n".join(faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=["qwen3-0.6b"])
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1007)
    parser.add_argument("--checked", type=int, default=8, help="requests to compare, of each run")
    parser.add_argument("--no-check", action="store_true", help="compare none")
    parser.add_argument("--no-clocks", action="store_true", help="do not ask for the card's state")
    return parser.parse_args()


def _run_recipe(name: str, arguments: argparse.Namespace, book: Book) -> list[str]:
    """Measure a recipe; return what did not agree with the reference."""
    recipe = RECIPES / f"{name}.yaml"
    start = time.perf_counter()
    composed = compose(open_recipe(recipe, arguments.set))
    label = " ".join((recipe.name, *arguments.set))
    spare_the_collector()
    book.write((name, "start", label), "start_s", "s", [time.perf_counter() - start])
    eager = None if arguments.no_check else Eager(composed.drawing)
    faults = []
    for workload in arguments.workloads:
        where = (name, workload, label)
        work = jobs(workload, composed.info.vocab, arguments.seed)
        last = _measured(composed, work, where, arguments, book)
        if eager is not None:
            checked = check_some(eager, work, last.answers, arguments.checked)
            _write_check(checked, where, book)
            if not all(one.passed for one in checked):
                worst = max(one.worst for one in checked)
                faults.append(
                    f"{name} {workload}: a token lies {worst:.1f} steps below the largest logit of "
                    f"the eager reference; a near-tie is up to {NEAR_TIE}"
                )
    composed.engine.close()
    return faults


def _measured(
    composed: Composed,
    work: list[Job],
    where: tuple[str, str, str],
    arguments: argparse.Namespace,
    book: Book,
) -> Measurement:
    """Measure a workload and write its rate and the card's state; return the last run."""
    uuid = str(torch.cuda.get_device_properties().uuid)
    measure(composed.engine, work)
    before = {} if arguments.no_clocks else card_state(uuid)
    runs = [measure(composed.engine, work) for _ in range(arguments.repeats)]
    after = {} if arguments.no_clocks else card_state(uuid)
    metric = "in_tok_s" if where[1] == "prefill" else "out_tok_s"
    tokens = runs[0].n_in if where[1] == "prefill" else runs[0].n_out
    book.write(where, metric, "tok/s", [tokens / one.seconds for one in runs])
    for state, (_, unit) in QUERIES.items():
        if state in before and state in after:
            values = [before[state], after[state]]
            book.write(where, state, unit, values, values[1])
    return runs[-1]


def _write_check(checked: list[Checked], where: tuple[str, str, str], book: Book) -> None:
    """Write the share of tokens that are the reference's own choice, and the worst near-tie."""
    tokens = sum(one.tokens for one in checked)
    equal = sum(one.equal for one in checked)
    shares = [one.equal / one.tokens for one in checked]
    book.write(where, "checked_equal", f"of {tokens} tokens", shares, equal / tokens)
    steps = [one.worst for one in checked]
    book.write(where, "checked_gap", "steps of the dtype", steps, max(steps))


if __name__ == "__main__":
    main()
