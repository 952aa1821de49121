"""The tiles of `row_linear`: how they are chosen, and that the choice changes no bit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from camshaft.plugins.ops.kernels.row_linear import (
    ANYWHERE,
    EXACT,
    HOPPER,
    row_linear,
    row_linear_by,
    tile_of,
)


@pytest.mark.parametrize(
    ("rows", "outputs", "tile"),
    [
        (1, 1024, (64, 16)),
        (1, 6144, (64, 32)),
        (64, 151936, (64, 128)),
        (65, 1024, (64, 16)),
        (65, 151936, (128, 128)),
        (300, 151936, (128, 128)),
        (256, 1024, (64, 32)),
        (256, 6144, (64, 128)),
        (1024, 6144, (256, 128)),
        (8192, 1024, (256, 128)),
    ],
)
def test_the_largest_tile_is_taken_of_which_there_are_enough(
    rows: int, outputs: int, tile: tuple[int, int]
) -> None:
    found = tile_of(rows, outputs, torch.bfloat16, any_width=True)
    assert (found.rows, found.outputs) == tile


def test_one_tile_serves_all_rows_where_instructions_would_differ() -> None:
    for dtype, any_width, tile in (
        (torch.bfloat16, False, ANYWHERE),
        (torch.float16, True, ANYWHERE),
        (torch.float32, True, EXACT),
    ):
        found = {tile_of(rows, 1024, dtype, any_width=any_width) for rows in (1, 64, 8192)}
        assert found == {tile}


def spread(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw numbers of many magnitudes, whose sums show every rounding."""
    drawn = torch.randn(*shape, device="cuda") * torch.exp2(torch.randn(*shape, device="cuda") * 2)
    return drawn.to(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [64, 1000, 1024, 3072, 14336])
def test_on_hopper_every_tile_gives_the_same_bits(inputs: int) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("elsewhere there is one tile")
    dtype = torch.bfloat16
    x, weight = spread(300, inputs, dtype=dtype), spread(1008, inputs, dtype=dtype)
    bias = spread(1008, dtype=dtype)
    wanted = row_linear_by(HOPPER[-1], x, weight, bias, torch.float32)
    for tile in HOPPER:
        assert torch.equal(row_linear_by(tile, x, weight, bias, torch.float32), wanted), tile
        alone = row_linear_by(tile, x[77:78], weight, bias, torch.float32)
        assert torch.equal(alone[0], wanted[77]), tile


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1024, 4096), (3072, 1024), (4096, 28672), (1024, 151936)]
)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_of_a_large_step_has_the_bits_that_it_has_alone(
    inputs: int, outputs: int, early: bool, dtype: torch.dtype
) -> None:
    hopper = torch.cuda.get_device_capability() == (9, 0)
    if early and not hopper:
        pytest.skip("this device has no programmatic dependent launch")
    x = spread(1100, inputs, dtype=dtype)
    weight = spread(outputs, inputs, dtype=dtype)
    wanted = row_linear(x, weight, None, early=early, any_width=hopper)
    for rows in (slice(0, 1), slice(700, 701), slice(3, 259), slice(64, 576)):
        found = row_linear(x[rows], weight, None, early=early, any_width=hopper)
        assert torch.equal(found, wanted[rows]), rows
