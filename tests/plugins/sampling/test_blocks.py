from __future__ import annotations

import numpy as np
import pytest
import torch

from camshaft.plugins.sampling.blocks import first_above, first_maximum, row_sums

SIZES = (1, 2, 255, 256, 257, 512, 1000, 5000)


@pytest.mark.parametrize("size", SIZES)
def test_the_first_maximum_is_numpys(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 20, (40, size)).astype(np.float32)
    best, index = first_maximum(torch.from_numpy(values))
    assert index.tolist() == values.argmax(axis=1).tolist()
    assert best.tolist() == values.max(axis=1).tolist()


def test_a_nan_anywhere_makes_the_maximum_nan() -> None:
    values = torch.zeros(4, 600)
    for row, column in enumerate((0, 300, 599)):
        values[row, column] = torch.nan
    assert first_maximum(values)[0].isnan().tolist() == [True, True, True, False]


@pytest.mark.parametrize("size", SIZES)
def test_the_first_place_above_a_share_is_numpys(size: int) -> None:
    rng = np.random.default_rng(size)
    mass = rng.integers(0, 2**44, (40, size)) * rng.integers(0, 2, (40, size))
    mass[:, size // 2] = 2**44
    share = rng.random(40)
    share[:2] = 0, 1 - 2**-53
    target = (share * mass.sum(axis=1)).astype(np.int64)
    expected = (mass.cumsum(axis=1) <= target[:, None]).sum(axis=1)
    found = first_above(torch.from_numpy(mass), torch.from_numpy(share))
    assert found.tolist() == expected.tolist()
    assert mass[np.arange(40), found.numpy()].all()
    assert row_sums(torch.from_numpy(mass)).tolist() == mass.sum(axis=1).tolist()


def test_rows_without_mass_get_a_place_in_the_row() -> None:
    for size in SIZES:
        mass = torch.zeros((2, size), dtype=torch.int64)
        mass[1] = torch.iinfo(torch.int64).min  # what becomes of NaN
        found = first_above(mass, torch.tensor([0.0, 0.9], dtype=torch.float64))
        assert ((found >= 0) & (found < size)).all()
