from __future__ import annotations

import numpy as np
import pytest
import torch

from camshaft.plugins.sampling.select import keep_best, sort_keys

SPECIAL = [-np.inf, -3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 1.0000001, 3e38, np.inf]


def test_keys_have_the_order_of_the_values() -> None:
    keys = sort_keys(torch.tensor([SPECIAL], dtype=torch.float32))[0].tolist()
    assert keys[4] == keys[5]
    del keys[4]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("levels", [1, 3, 10**6])
@pytest.mark.parametrize("size", [1, 50, 3000])
def test_the_best_by_weight_are_those_of_a_stable_sort(levels: int, size: int) -> None:
    rng = np.random.default_rng([levels, size])
    values = (rng.integers(-levels, levels, (30, size)) / 7).astype(np.float32)
    values[:3] = [[np.inf], [-np.inf], [1e-40]]
    weights = np.floor(np.exp2(values.clip(-40, 3)) * 2**40).astype(np.int64)
    for own in (weights, np.ones_like(weights)):
        need = (1 + rng.random(30) * (own.sum(axis=1) - 1)).astype(np.int64)
        need[:6] = [*own.sum(axis=1)[:5], 1]
        mass = torch.from_numpy(weights.copy())
        keep_best(
            mass, sort_keys(torch.from_numpy(values)), torch.from_numpy(own), torch.from_numpy(need)
        )
        order = np.argsort(-values, axis=1, kind="stable")
        before = np.take_along_axis(own, order, 1).cumsum(axis=1)
        kept = np.zeros_like(own)
        first = np.pad(before, ((0, 0), (1, 0)))[:, :-1] < need[:, None]
        np.put_along_axis(kept, order, first.astype(np.int64), 1)
        assert np.array_equal(mass.numpy(), weights * kept)


def test_a_second_selection_goes_by_what_the_first_left() -> None:
    keys = sort_keys(torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0]]))
    mass = torch.tensor([[4, 8, 4, 4, 8]])
    keep_best(mass, keys, torch.ones_like(mass), torch.tensor([4]))
    assert mass.tolist() == [[4, 8, 4, 0, 8]]
    keep_best(mass, keys, mass, torch.tensor([17]))
    assert mass.tolist() == [[4, 8, 0, 0, 8]]


def test_rows_of_nan_stay_in_bounds() -> None:
    keys = sort_keys(torch.full((1, 300), torch.nan))
    keep_best(
        torch.zeros((1, 300), dtype=torch.int64),
        keys,
        torch.full((1, 300), -(2**62)),
        torch.tensor([1]),
    )
