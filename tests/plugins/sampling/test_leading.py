from __future__ import annotations

import numpy as np
import pytest
import torch

from camshaft.plugins.sampling import leading as module
from camshaft.plugins.sampling.leading import Leading, leading, solve


@pytest.mark.parametrize("width", [1, 5, 64, 299, 300, 400])
@pytest.mark.parametrize("values", [4, 10**6])
def test_sure_places_are_those_of_a_stable_sort(width: int, values: int) -> None:
    rows = np.random.default_rng(width).integers(0, values, (20, 300)).astype(np.float32)
    order = np.argsort(-rows, axis=1, kind="stable")
    found = leading(torch.from_numpy(rows), width)
    for row in range(20):
        sure = int(found.sure[row])
        assert found.ids[row, :sure].tolist() == order[row, :sure].tolist()
        sorted_values = rows[row, order[row]]
        assert found.values[row].tolist() == sorted_values[: found.ids.shape[1]].tolist()


def test_only_a_tie_at_the_end_is_unsure() -> None:
    rows = torch.tensor([[3.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 9.0]])
    assert leading(rows, 2).sure.tolist() == [1, 1]
    assert leading(rows, 3).sure.tolist() == [2, 1]
    assert leading(rows, 4).sure.tolist() == [4, 4]


def attempts(rows: torch.Tensor, least: int, need: torch.Tensor) -> list[tuple[int, list[int]]]:
    """Return (width, rows) of each attempt, when row i needs `need[i]` sure places."""
    made: list[tuple[int, list[int]]] = []

    def attempt(some: Leading, index: torch.Tensor | None) -> torch.Tensor:
        which = torch.arange(len(rows)) if index is None else index
        made.append((some.ids.shape[1], which.tolist()))
        return some.sure >= need[which]

    solve(rows, least, attempt)
    return made


def test_only_unsolved_rows_see_more_entries() -> None:
    rows = torch.randperm(3000, generator=torch.Generator().manual_seed(0)).float().repeat(3, 1)
    need = torch.tensor([3, 2000, 100])
    assert attempts(rows, 0, need) == [(64, [0, 1, 2]), (1024, [1, 2]), (3000, [1])]
    assert attempts(rows, 64, need)[0] == (1024, [0, 1, 2])


def test_an_accelerator_sorts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_WIDTHS", ())
    assert attempts(torch.zeros(2, 3000), 0, torch.tensor([9, 9])) == [(3000, [0, 1])]
