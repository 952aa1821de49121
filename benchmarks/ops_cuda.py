"""Fused operations on a GPU: time of a call inside a graph, and the bandwidth that it reaches.

Run: python -m benchmarks.ops_cuda --out ops.jsonl

Arguments rotate among sets that together exceed the second-level cache, and a graph holds one call
on each set, so that neither launches nor warm inputs are in the figures. Bytes are those that any
version must move: inputs once, results once.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from camshaft.contracts.attention import AttentionLayer
from camshaft.ops import OpsTable
from camshaft.plugins.ops.components import TritonOpsSettings
from camshaft.plugins.ops.triton import TritonOps
from camshaft.testing.ops import rope

from .results import Figure, commit, new_run

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = (1, 4, 16, 64, 256, 4096)
COLD_BYTES = 256 * 2**20
REPEATS = 9


class Shape(NamedTuple):
    """Of a model: widths C and I, heads H, kv heads G, vocabulary V, whether heads norm."""

    C: int
    I: int
    H: int
    G: int
    V: int
    norms: bool


SHAPES = {
    "qwen3-0.6b": Shape(1024, 3072, 16, 8, 151936, True),
    "llama-8b": Shape(4096, 14336, 32, 8, 128256, False),
}
HEAD_DIM = 128


class Case(NamedTuple):
    """One operation on one shape: how to draw arguments, the bytes of a call, what it is for."""

    name: str
    draw: Callable[[], tuple[Any, ...]]
    moved: int
    work: str = ""


def rows(*shape: int) -> torch.Tensor:
    """Return random activations."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases(shape: Shape, tokens: int) -> list[Case]:
    """Return every operation on a model's shape; an activation has 2 bytes."""
    C, I, H, G, _, norms = shape
    weight = rows(HEAD_DIM) if norms else None
    layer = AttentionLayer(
        0, 0, H, G, HEAD_DIM, HEAD_DIM, 1.0,
        rope=rope(HEAD_DIM, torch.device("cuda"), 32768), q_norm=weight, k_norm=weight,
    )  # fmt: skip
    heads = (H + 2 * G) * HEAD_DIM

    def places() -> torch.Tensor:
        return torch.randint(0, 32768, (tokens,), device="cuda")

    return [
        Case("rms_norm", lambda: (rows(tokens, C), rows(C), 1e-6), 2 * C * (2 * tokens + 1)),
        Case(
            "add_rms_norm",
            lambda: (rows(tokens, C), rows(tokens, C), rows(C), 1e-6),
            2 * C * (4 * tokens + 1),
        ),
        Case(
            "rope_qk_norm",
            lambda: (rows(tokens, heads), places(), layer),
            tokens * (4 * heads + 4 * HEAD_DIM + 8),  # angles are float32, positions int64
        ),
        Case("silu_mul", lambda: (rows(tokens, 2 * I),), 6 * tokens * I),
        Case("gelu_mul", lambda: (rows(tokens, 2 * I),), 6 * tokens * I),
        *linear_cases(shape, tokens),
    ]


def linear_cases(shape: Shape, tokens: int) -> list[Case]:
    """Return the products of a layer and the head, each as the model asks for it."""
    C, I, H, G, V, _ = shape
    queries, heads = H * HEAD_DIM, (H + 2 * G) * HEAD_DIM

    def weight(outputs: int, inputs: int) -> torch.Tensor:
        return rows(outputs, inputs) / math.sqrt(inputs)

    def plain(name: str, outputs: int, inputs: int) -> Case:
        moved = 2 * (outputs * inputs + tokens * (outputs + inputs))
        return Case(
            "linear", lambda: (rows(tokens, inputs), weight(outputs, inputs), None), moved, name
        )

    def normed(outputs: int) -> tuple[Any, ...]:
        return (
            rows(tokens, C), rows(tokens, C), rows(C), 1e-6, weight(outputs, C), None,
        )  # fmt: skip

    return [
        Case(
            "norm_linear",
            lambda: normed(heads),
            2 * (heads * C + C + tokens * (heads + 3 * C)),
            "norm_linear qkv",
        ),
        plain("linear o", C, queries),
        Case(
            "norm_gated_linear",
            lambda: (*normed(2 * I), "silu"),
            2 * (2 * I * C + C + tokens * (I + 3 * C)),
            "norm_gated_linear",
        ),
        plain("linear down", C, I),
        plain("linear head", V, C),
    ]


def microseconds(function: Callable[..., object], case: Case) -> list[float]:
    """Return the time of one call, from several replays of a graph of calls on cold arguments."""
    calls = max(4, min(64, COLD_BYTES // case.moved + 1))
    sets = [case.draw() for _ in range(calls)]
    kept = [function(*one) for one in sets]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [function(*one) for one in sets]
    graph.replay()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    del kept
    return times


def engines() -> dict[str, dict[str, Callable[..., object]]]:
    """Return the versions to compare: plain references, ours, ours launched early."""
    found: dict[str, dict[str, Callable[..., object]]] = {"references": vars(OpsTable())}
    for label, early in (("triton", False), ("triton, early_launch", True)):
        if early and torch.cuda.get_device_capability() < (9, 0):
            continue
        offered = TritonOps(TritonOpsSettings(early_launch=early)).implementations()
        found[label] = {one.name: one.function for one in offered}
    return found


def figures(run: str, model: str, work: str, recipe: str, times: list[float], moved: int) -> str:
    """Return the lines of one measurement: its time and the rate at which bytes moved."""
    known = commit() if shutil.which("git") else "unknown"
    lines = ""
    for metric, unit, values in (
        ("time", "us", times),
        ("rate", "TB/s", [moved / one / 1e6 for one in times]),
    ):
        figure = Figure(
            run_id=run,
            bench="ops-cuda",
            model=model,
            workload=work,
            recipe=f"ops: {recipe}",
            engine="camshaft",
            device=torch.cuda.get_device_name(),
            metric=metric,
            unit=unit,
            repeats=[round(value, 4) for value in values],
            commit=known,
        )
        lines += figure.line() + "\n"
    return lines


def main() -> None:
    """Measure every operation, shape and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are appended here")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--tb-s", type=float, default=4.15, help="what the card's memory reaches")
    given = parser.parse_args()
    run, versions = new_run("ops-cuda"), engines()
    for (model, shape), tokens in itertools.product(SHAPES.items(), given.tokens):
        for case in cases(shape, tokens):
            work, floor = f"{case.work or case.name}-{tokens}", case.moved / given.tb_s / 1e6
            for recipe, table in versions.items():
                times = microseconds(table[case.name], case)
                middle = statistics.median(times)
                print(
                    f"{model:12} {work:22} {recipe:21} {middle:8.2f} us, {floor:8.2f} at least;"
                    f" {case.moved / middle / 1e6:6.3f} TB/s",
                    flush=True,
                )
                with given.out.open("a") as file:
                    file.write(figures(run, model, work, recipe, times, case.moved))


if __name__ == "__main__":
    main()
