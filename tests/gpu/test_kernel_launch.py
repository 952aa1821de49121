"""Kernels that are launched past Triton give what they give through it."""

from __future__ import annotations

import pytest
import torch

from camshaft.kernel_launch import KernelLaunch

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl

pytestmark = pytest.mark.gpu


@triton.jit  # type: ignore[untyped-decorator]
def scaled_sum(x, y, out, size, step, scale, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place * step, mask=place < size, other=0.0).to(tl.float32)
    if y is not None:
        value += tl.load(y + place, mask=place < size, other=0.0).to(tl.float32)
    if TWICE:
        value *= 2
    tl.store(out + place, (value * scale).to(out.dtype.element_ty), mask=place < size)


def check(
    launch: KernelLaunch, x: torch.Tensor, y: torch.Tensor | None, size: int, step: int
) -> None:
    """Compare with torch, which no cached kernel can deceive."""
    out = torch.full((size,), -1, device="cuda", dtype=x.dtype)
    launch((-(-size // 64), 1, 1), x, y, out, size, step, 0.5)
    wanted = x[: size * step : step] + (0 if y is None else y[:size])
    torch.testing.assert_close(out, wanted)


def test_no_combination_runs_the_code_of_another() -> None:
    launch = KernelLaunch(scaled_sum, BLOCK=64, TWICE=True)
    for _ in range(3):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            x = torch.arange(2000, device="cuda").to(dtype)
            for start in (0, 1, 4):
                for size, step in ((100, 1), (128, 2), (1, 16), (112, 3)):
                    check(launch, x[start:], None, size, step)
                    check(launch, x[start:], x[3:], size, step)


def test_launches_past_triton_are_recorded_in_graphs() -> None:
    launch = KernelLaunch(scaled_sum, BLOCK=64, TWICE=False, num_warps=2)
    x = torch.ones(100, device="cuda")
    out = torch.zeros(100, device="cuda")

    def step() -> None:
        launch((2, 1, 1), x, out, out, 100, 1, 0.5)

    step()
    assert any(kinds and any(kinds.compiled.values()) for kinds in launch._kinds.values())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert torch.equal(out, x * 0.5)
    graph.replay()
    assert torch.equal(out, x * 0.75)


def test_a_hook_sees_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = KernelLaunch(scaled_sum, BLOCK=64, TWICE=True)
    x = torch.ones(64, device="cuda")
    check(launch, x, None, 64, 1)
    names: list[str] = []
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(seen := lambda data: names.append(data.get()["name"]))
    try:
        check(launch, x, None, 64, 1)
    finally:
        hooks.remove(seen)
    check(launch, x, None, 64, 1)
    assert names == ["scaled_sum"]
