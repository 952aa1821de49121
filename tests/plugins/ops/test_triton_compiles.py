"""The linears compile for accelerators that are not here. The interpreter checks no types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from camshaft.plugins.ops.kernels.linear import linear, norm_gated_linear, norm_linear
from camshaft.plugins.ops.kernels.row_linear import ANYWHERE, EXACT, HOPPER, Tile, row_linear_by

pytestmark = pytest.mark.compiled


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


Compiled = Callable[..., dict[str, Any]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Compile what a function launches instead of launching it; give the kernels by name."""

    def compile_for(target: GPUTarget, function: Callable[..., object], *given: Any, early: bool):
        found: dict[str, Any] = {}
        run = JITFunction.run

        def warm_up(self: Any, *args: Any, **named: Any) -> Any:
            found[self.fn.__name__] = run(self, *args, **{**named, "warmup": True})

        with monkeypatch.context() as patch:
            patch.setattr(JITFunction, "run", warm_up)
            patch.setattr(triton.runtime.driver, "_active", Absent(target))
            function(*given, early=early)
        return found

    return compile_for


HOPPER_TARGET, CDNA = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("target", "limit"), [(HOPPER_TARGET, 227 << 10), (CDNA, 64 << 10)], ids=["sm_90", "gfx942"]
)
@pytest.mark.parametrize(
    ("outputs", "inputs", "rows"), [(1024, 2048, 16), (4096, 1024, 1), (40, 5008, 3), (24, 3072, 1)]
)
def test_every_linear_compiles_and_fits(
    compiled: Compiled, outputs: int, inputs: int, rows: int, target: GPUTarget, limit: int
) -> None:
    x, weight, norm, bias = half(rows, inputs), half(outputs, inputs), half(inputs), half(outputs)
    early = target is HOPPER_TARGET
    kernel = "_one_row" if rows == 1 else "_few_rows"
    for function, given in (
        (linear, (x, weight, None)),
        (norm_linear, (x, x.clone(), norm, 1e-6, weight, bias)),
        (norm_gated_linear, (x, x.clone(), norm, 1e-6, weight, bias, "gelu")),
    ):
        found = compiled(target, function, *given, early=early)
        assert found[kernel].metadata.shared <= limit


@pytest.mark.parametrize("rows", [1, 4])
def test_an_early_launch_fetches_weights_before_it_waits_and_activations_after(
    compiled: Compiled, rows: int
) -> None:
    given = (half(rows, 1024), half(1024, 1024), None)
    ptx = compiled(HOPPER_TARGET, linear, *given, early=True).popitem()[1].asm["ptx"]
    before, after = ptx.split("griddepcontrol.wait")
    assert "griddepcontrol.launch_dependents" in before
    assert before.count("ld.global") >= 2
    assert "ld.global" in after
    assert "st.global" not in before


@pytest.mark.parametrize("tile", HOPPER, ids=str)
def test_a_hopper_tile_adds_16_products_at_a_time_for_64_rows_whatever_its_width(
    compiled: Compiled, tile: Tile
) -> None:
    def launch(*given: Any, early: bool) -> None:
        row_linear_by(tile, *given, early=early)

    given = (half(300, 1000), half(1008, 1000), half(1008))
    kernel = compiled(HOPPER_TARGET, launch, *given, early=True)["_row_linear"]
    instructions = set(re.findall(r"[\w.]*mma[\w.]*sync[\w.]*", kernel.asm["ptx"]))
    names = {name for name in instructions if "mma_async" in name or name.startswith("mma")}
    width = min(tile.outputs, 256)
    assert names == {f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.bf16.bf16"}
    assert kernel.metadata.shared <= 227 << 10


@pytest.mark.parametrize("tile", [ANYWHERE, EXACT], ids=str)
def test_the_other_tiles_compile_and_fit_everywhere(compiled: Compiled, tile: Tile) -> None:
    def launch(*given: Any, early: bool) -> None:
        row_linear_by(tile, *given, early=early)

    x, weight = half(300, 1000), half(1008, 1000)
    if tile is EXACT:
        x, weight = x.float(), weight.float()
    for target, limit in ((HOPPER_TARGET, 227 << 10), (CDNA, 64 << 10)):
        found = compiled(target, launch, x, weight, None, early=False)
        assert found["_row_linear"].metadata.shared <= limit
