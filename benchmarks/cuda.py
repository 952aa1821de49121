"""The GPU workloads on one CUDA device, through the engine's own loop.

Token ids are random, EOS is ignored, decoding is greedy, weights are random bfloat16, the prefix
cache starts cold in every run. The first run warms up and is not counted.

Run: python -m benchmarks.cuda --recipes qwen3-0.6b llama-8b
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from camshaft import open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import jobs

from .results import Figure, new_run, write

WORKLOADS = ("single", "mixed", "prefill", "shared", "burst", "long")
RECIPES = Path(__file__).parent / "recipes"


def card_rates() -> dict[str, float]:
    """Return this card's copy bandwidth in TB/s and bf16 GEMM rate in TFLOP/s, measured now."""
    source = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def seconds(work: object) -> float:
        times = []
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()  # type: ignore[operator]
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source)) / 1e12
    gemm = 2 * 8192**3 / seconds(lambda: matrix @ matrix) / 1e12
    return {"copy_tb_s": copy, "gemm_tflop_s": gemm}


def main() -> None:
    """Run every workload of every recipe; a figure a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", default=["qwen3-0.6b"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1007)
    arguments = parser.parse_args()
    run, card = new_run("cuda"), torch.cuda.get_device_name()

    def figure(model: str, workload: str, recipe: str, metric: str, values: list[float]) -> Figure:
        unit = {"copy_tb_s": "TB/s", "gemm_tflop_s": "TFLOP/s", "start_s": "s"}.get(metric, "tok/s")
        return Figure(
            run_id=run,
            bench="cuda",
            model=model,
            workload=workload,
            recipe=recipe,
            engine="camshaft",
            device=card,
            metric=metric,
            unit=unit,
            repeats=[round(value, 2) for value in values],
        )

    write([figure("none", "card", "none", *item) for item in _listed(card_rates())], "cuda")
    for name in arguments.recipes:
        recipe = RECIPES / f"{name}.yaml"
        start = time.perf_counter()
        composed = compose(open_recipe(recipe))
        spare_the_collector()
        took = time.perf_counter() - start
        write([figure(name, "start", recipe.name, "start_s", [took])], "cuda")
        for workload in arguments.workloads:
            work = jobs(workload, composed.info.vocab, arguments.seed)
            runs = [measure(composed.engine, work) for _ in range(arguments.repeats + 1)][1:]
            metric = "in_tok_s" if workload == "prefill" else "out_tok_s"
            tokens = runs[0].n_in if workload == "prefill" else runs[0].n_out
            rates = [tokens / one.seconds for one in runs]
            write([figure(name, workload, recipe.name, metric, rates)], "cuda")
        composed.engine.close()
        del composed
        torch.cuda.empty_cache()


def _listed(rates: dict[str, float]) -> list[tuple[str, list[float]]]:
    return [(name, [value]) for name, value in rates.items()]


if __name__ == "__main__":
    main()
