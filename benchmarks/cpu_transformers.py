"""The quickstart recipe beside transformers in bfloat16, same prompts, in one process.

Greedy, EOS ignored; decoding is timed from the first token on, batches from the first submission.
Runs alternate, so that a slow minute of the machine hits both.

Run: python -m benchmarks.cpu_transformers
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import torch

from camshaft import open_recipe
from camshaft.compose import compose
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import Job, jobs
from tests.oracle import smollm2_oracle

from .results import Figure, device, new_run, write

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from camshaft.loop.engine import Engine

RECIPE = "recipes/quickstart.yaml"


def load_transformers() -> PreTrainedModel:
    """Return the same weights in transformers, dequantised to bfloat16."""
    model: PreTrainedModel = smollm2_oracle().model.to(torch.bfloat16)
    return model


@torch.inference_mode()
def run_transformers(model: PreTrainedModel, work: list[Job]) -> tuple[float, float]:
    """Return (output rate of the batch, decode rate after the first token), tokens per second."""
    outputs = work[0].outputs
    prompts = torch.tensor([job.prompt for job in work])
    mask = torch.ones_like(prompts)

    def generate(new: int) -> float:
        start = time.perf_counter()
        model.generate(
            prompts,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=2,
        )
        return time.perf_counter() - start

    first, whole = generate(1), generate(outputs)
    return len(work) * outputs / whole, len(work) * (outputs - 1) / (whole - first)


def run_camshaft(engine: Engine, work: list[Job]) -> tuple[float, float]:
    """Return the same two rates."""
    done = measure(engine, work)
    return done.n_out / done.seconds, len(work) * 1e3 / (sum(done.tpot_ms) / len(done.tpot_ms))


def main() -> None:
    """Measure one and 32 streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=["cpu-single", "cpu-batch32"])
    arguments = parser.parse_args()
    composed = compose(open_recipe(RECIPE))
    theirs = load_transformers()
    run, where = new_run("cpu-transformers"), device()
    figures = []
    for workload in arguments.workloads:
        work = jobs(workload, composed.info.vocab)
        rates: dict[tuple[str, str], list[float]] = {}
        for repeat in range(arguments.repeats + 1):
            for name, pair in (
                ("camshaft", run_camshaft(composed.engine, work)),
                ("transformers", run_transformers(theirs, work)),
            ):
                if repeat:  # the first run warms up
                    for metric, value in zip(("out_tok_s", "decode_tok_s"), pair, strict=True):
                        rates.setdefault((name, metric), []).append(value)
        for (name, metric), values in rates.items():
            recipe = RECIPE if name == "camshaft" else "bfloat16, eager, generate()"
            figures.append(
                Figure(
                    run_id=run,
                    bench="cpu-transformers",
                    model="smollm2-135m",
                    workload=workload,
                    recipe=recipe,
                    engine=name,
                    device=where,
                    metric=metric,
                    unit="tok/s",
                    repeats=[round(value, 2) for value in values],
                )
            )
    write(figures, "cpu_transformers")


if __name__ == "__main__":
    main()
