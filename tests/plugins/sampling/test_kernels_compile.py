"""The kernels compile for accelerators that are not here. The interpreter checks no types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from camshaft.plugins.sampling.kernels.launch import choose
from camshaft.plugins.sampling.kernels.penalties import count_tokens, penalise
from camshaft.plugins.sampling.params import Method, Tables
from camshaft.testing.sampling_play import row_context

pytestmark = pytest.mark.compiled

KERNELS = {
    "tops_kernel", "begin_kernel", "sums_kernel", "list_kernel", "choose_kernel",
    "penalise_kernel", "count_kernel",
}  # fmt: skip
TARGETS = [(GPUTarget("cuda", 90, 32), 227 << 10), (GPUTarget("hip", "gfx942", 64), 64 << 10)]


class Absent:
    """A driver without a device; its number keeps compiled kernels apart from real ones."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_device(self) -> str:
        return f"absent {self.target.arch}"

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


@pytest.mark.parametrize(("target", "limit"), TARGETS, ids=["sm_90", "gfx942"])
@pytest.mark.parametrize(
    ("dtype", "rows"), [("bfloat16", 9), ("float32", 1)], ids=["many rows", "a row"]
)
def test_every_kernel_compiles_and_fits(
    monkeypatch: pytest.MonkeyPatch, target: GPUTarget, limit: int, dtype: str, rows: int
) -> None:
    found: dict[str, int] = {}
    run = JITFunction.run

    def compiled(self: Any, *args: Any, **named: Any) -> Any:  # the kernel's own arguments
        kernel = run(self, *args, **{**named, "warmup": True})
        found[self.fn.__name__] = kernel.metadata.shared
        return kernel

    monkeypatch.setattr(JITFunction, "run", compiled)
    monkeypatch.setattr(triton.runtime.driver, "_active", Absent(target))
    tables = Tables(torch.zeros(3, rows), torch.zeros(3, rows, dtype=torch.int64))
    logits = torch.zeros(rows, 151_936, dtype=getattr(torch, dtype))
    slots = torch.arange(rows)
    for method in Method:
        choose(method, logits, slots, slots if rows > 1 else None, tables, advance=rows > 1)
    drafts = row_context([0], [[5] * (rows - 1)], max_drafts=rows - 1) if rows > 1 else None
    cells = torch.zeros(rows, 151_936, dtype=torch.int32)
    penalise(logits, torch.zeros_like(logits), slots, drafts, tables.floats, cells)
    counts = slots if rows > 1 else None
    count_tokens(slots.unsqueeze(1), counts, slots, cells)
    assert set(found) == KERNELS
    assert max(found.values()) <= limit
