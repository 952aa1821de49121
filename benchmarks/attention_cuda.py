"""Attention `triton` on an accelerator: bandwidth of decode, arithmetic of prefill, and `cudnn`'s.

Run: python -m benchmarks.attention_cuda --out FILE [--only decode|shared|prefill] [--sweep]
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from triton.runtime.errors import OutOfResources

from camshaft.contracts.attention import (
    AttentionBackend,
    AttentionLayer,
    AttentionMeta,
    AttentionSpec,
    SharedPrefixes,
)
from camshaft.plugins.attention import triton
from camshaft.plugins.attention.components import CudnnSettings, TritonSettings
from camshaft.plugins.attention.cudnn import CudnnAttention
from camshaft.plugins.attention.launch import Blocks
from camshaft.plugins.attention.triton import TritonAttention
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV

from .results import Figure, commit, new_run

READ_BYTES_S = 4.15e12  # what an H200 reached in a large copy, 2026-11-29
DEVICE, DTYPE, DIM = "cuda", torch.bfloat16, 128
HEADS = ((32, 8), (16, 8))
REPEATS = 20
COLD_BYTES = 512 << 20  # so many bytes of layers in turn keep keys out of the cache

DECODE_BLOCKS = tuple(
    Blocks(16, keys, warps, stages)
    for keys, warps, stages in (
        (32, 2, 3),
        (32, 4, 5),
        (64, 4, 3),
        (64, 4, 5),
        (64, 8, 5),
        (128, 4, 3),
        (128, 8, 3),
        (128, 8, 5),
    )
)
RESIDENTS = (2, 3, 4)
PREFILL_BLOCKS = tuple(
    Blocks(rows, keys, warps, stages)
    for rows, keys, warps, stages in (
        (64, 64, 4, 3),
        (64, 128, 4, 3),
        (128, 32, 8, 3),
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 64, 8, 5),
        (128, 128, 8, 2),
        (128, 128, 8, 3),
    )
)


@dataclass(slots=True)
class Case:
    """Random requests over shuffled pages, as several layers with the same lengths."""

    backend: TritonAttention
    layer: AttentionLayer
    meta: AttentionMeta
    fields: list[dict[str, torch.Tensor]]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor

    def attend(self, fields: dict[str, torch.Tensor], *, write: bool) -> None:
        """Run one layer."""
        k, v = (self.k, self.v) if write else (None, None)
        self.backend.forward(self.layer, self.q, k, v, fields, self.meta, self.out)


def case(
    requests: int, context: int, tokens: int, heads: tuple[int, int], page_tokens: int, layers: int
) -> Case:
    """Build requests that have `context` tokens in pages and bring `tokens`."""
    spec = AttentionSpec(heads[0], heads[1], DIM, DIM, "bfloat16", page_tokens)
    backend = TritonAttention(TritonSettings(), spec, PlainKV(KVNoneSettings()))
    width = -(-(context + tokens) // page_tokens)
    pages = torch.randperm(requests * width, device=DEVICE) + 1
    table = pages.view(requests, width).to(torch.int32)
    positions = (context + torch.arange(tokens, device=DEVICE)).repeat(requests)
    request = torch.arange(requests, device=DEVICE).repeat_interleave(tokens)
    starts = np.arange(requests + 1, dtype=np.int32) * tokens
    meta = AttentionMeta(
        decode_requests=requests if tokens == 1 else 0,
        query_start=torch.from_numpy(starts.astype(np.int64)).to(DEVICE),
        context=torch.full((requests,), context, dtype=torch.int64, device=DEVICE),
        positions=positions,
        request=request,
        page_table=table,
        write_page=table[request, positions // page_tokens].long(),
        write_offset=positions % page_tokens,
        host_query_start=starts,
        host_context=np.full(requests, context, dtype=np.int32),
    )
    shape = (requests * width + 1, heads[1], page_tokens, DIM)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=DTYPE, device=DEVICE)

    return Case(
        backend=backend,
        layer=AttentionLayer(0, 0, heads[0], heads[1], DIM, DIM, DIM**-0.5),
        meta=meta,
        fields=[{"k": noise(*shape), "v": noise(*shape)} for _ in range(layers)],
        q=noise(requests * tokens, heads[0], DIM),
        k=noise(requests * tokens, heads[1], DIM),
        v=noise(requests * tokens, heads[1], DIM),
        out=torch.empty(requests * tokens, heads[0], DIM, dtype=DTYPE, device=DEVICE),
    )


def timed(function: Callable[[], object], calls: int) -> list[float]:
    """Return microseconds of each of `REPEATS` runs, divided by the calls that a run makes."""
    for _ in range(3):
        function()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return times


def decode_times(one: Case, *, write: bool) -> list[float]:
    """Time a graph that runs every layer once."""
    one.meta.plan = one.backend.plan(one.meta)
    one.attend(one.fields[0], write=write)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for fields in one.fields:
            one.attend(fields, write=write)
    return timed(graph.replay, len(one.fields))


def prefill_times(one: Case, backend: AttentionBackend) -> list[float]:
    """Time one layer, its plan left out."""
    one.meta.plan = backend.plan(one.meta)
    work = (one.layer, one.q, one.k, one.v, one.fields[0], one.meta, one.out)
    return timed(lambda: backend.forward(*work), 1)


class Report:
    """Collects figures, prints them, and appends them to a file."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.run_id = new_run("attention_cuda")
        self.device = torch.cuda.get_device_name()
        self.commit = commit() if shutil.which("git") else "unknown"

    def add(self, workload: str, recipe: str, metric: str, unit: str, repeats: list[float]) -> None:
        """Write one figure."""
        figure = Figure(
            run_id=self.run_id,
            bench="attention_cuda",
            model="none",
            workload=workload,
            recipe=recipe,
            engine="camshaft",
            device=self.device,
            metric=metric,
            unit=unit,
            repeats=[round(value, 3) for value in repeats],
            commit=self.commit,
        )
        with self.out.open("a") as file:
            file.write(figure.line() + "\n")
        print(f"{workload:34} {recipe:26} {metric:14} {statistics.median(repeats):9.3f} {unit}")


def decode_cases() -> Iterator[tuple[str, int, Case]]:
    """Yield workload, bytes of keys and values that a layer reads, and the case."""
    shapes = ((1, 1024), (1, 16384), (16, 1024), (16, 16384), (256, 1024))
    for (requests, length), heads, page in itertools.product(shapes, HEADS, (16, 64)):
        size = requests * length * heads[1] * DIM * 2 * DTYPE.itemsize
        layers = max(2, min(32, -(-COLD_BYTES // size)))
        name = f"decode {requests}x{length} h{heads[0]}/{heads[1]} p{page}"
        yield name, size, case(requests, length - 1, 1, heads, page, layers)


@contextmanager
def decode_choice(blocks: Blocks, resident: int) -> Iterator[None]:
    """Run with other blocks and another idea of how many programs fit."""
    blocks = replace(blocks, resident=resident)
    with mock.patch.object(triton, "decode_blocks", return_value=[blocks]):
        yield


def report_decode(report: Report, name: str, size: int, one: Case, recipe: str) -> None:
    """Measure a case with the blocks in force."""
    try:
        times = decode_times(one, write=False)
    except OutOfResources:
        print(f"{name:34} {recipe:26} does not fit")
        return
    report.add(name, recipe, "attend", "us", times)
    report.add(name, recipe, "read", "TB/s", [size / time / 1e6 for time in times])
    share = [100 * size / time / 1e-6 / READ_BYTES_S for time in times]
    report.add(name, recipe, "of_peak", "%", share)


def decode(report: Report, *, sweep: bool) -> None:
    """Decode at several batches and lengths."""
    for name, size, one in decode_cases():
        report_decode(report, name, size, one, "default")
        report.add(name, "default", "with_write", "us", decode_times(one, write=True))
        if not sweep or "h32" not in name or "p16" not in name:
            continue
        for blocks, resident in itertools.product(DECODE_BLOCKS, RESIDENTS):
            one.backend._scratch.clear()  # its size follows `RESIDENT`
            recipe = f"k{blocks.keys} w{blocks.warps} s{blocks.stages} r{resident}"
            with decode_choice(blocks, resident):
                report_decode(report, name, size, one, recipe)
        one.backend._scratch.clear()


def shared(report: Report) -> None:
    """Decode of many requests that begin with the same pages, with the cascade and without."""
    shapes = ((256, 2048, 128), (32, 2048, 128), (8, 16384, 128))
    for (requests, prefix, own), heads in itertools.product(shapes, HEADS):
        name = f"shared {requests}x{own}+{prefix} h{heads[0]}/{heads[1]} p64"
        one = case(requests, prefix + own - 1, 1, heads, 64, 4)
        columns = prefix // 64
        one.meta.page_table[:, :columns] = one.meta.page_table[0, :columns].clone()
        once = (prefix + requests * own) * heads[1] * DIM * 2 * DTYPE.itemsize
        everybody = np.zeros(requests, dtype=np.int32)
        sharing = SharedPrefixes(everybody, np.array([prefix], dtype=np.int32))
        for recipe in ("plain", "cascade"):
            one.meta.shared = sharing if recipe == "cascade" else None
            times = decode_times(one, write=False)
            report.add(name, recipe, "attend", "us", times)
            floor = [100 * once / time / 1e-6 / READ_BYTES_S for time in times]
            report.add(name, recipe, "of_one_read", "%", floor)


def prefill(report: Report, *, sweep: bool) -> None:
    """Prompts without anything stored, chunks over a context, and requests that fill no blocks."""
    shapes = (
        (8, 0, 4096),
        (2, 0, 4096),
        (1, 0, 16384),
        (1, 8192, 8192),
        (4, 14336, 2048),
        (2, 1000, 3500),
    )
    for (requests, context, tokens), heads, page in itertools.product(shapes, HEADS, (16, 64)):
        name = f"prefill {requests}x{context}+{tokens} h{heads[0]}/{heads[1]} p{page}"
        pairs = tokens * context + tokens * (tokens + 1) // 2  # of a query and a key it sees
        flops = 4 * requests * pairs * heads[0] * DIM
        one = case(requests, context, tokens, heads, page, 1)

        def add(recipe: str, times: list[float], name: str = name, flops: int = flops) -> None:
            report.add(name, recipe, "attend", "us", times)
            report.add(name, recipe, "rate", "TFLOP/s", [flops / time / 1e6 for time in times])

        cudnn = CudnnAttention(CudnnSettings(), one.backend.spec, one.backend.kv_quant)
        add("cudnn", prefill_times(one, cudnn))
        chosen = [one.backend.prefill_blocks]
        if sweep and heads == HEADS[0] and page == 16:
            chosen += PREFILL_BLOCKS
        for blocks in chosen:
            one.backend.prefill_blocks = blocks
            recipe = f"m{blocks.rows} k{blocks.keys} w{blocks.warps} s{blocks.stages}"
            try:
                add(recipe, prefill_times(one, one.backend))
            except OutOfResources:
                print(f"{name:34} {recipe:26} does not fit")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are appended to it")
    parser.add_argument("--only", choices=("decode", "shared", "prefill"))
    parser.add_argument("--sweep", action="store_true", help="try other block sizes as well")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = Report(args.out)
    if args.only in {None, "decode"}:
        decode(report, sweep=args.sweep)
    if args.only in {None, "shared"}:
        shared(report)
    if args.only in {None, "prefill"}:
        prefill(report, sweep=args.sweep)


if __name__ == "__main__":
    main()
