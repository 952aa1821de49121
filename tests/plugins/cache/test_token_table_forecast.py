from __future__ import annotations

import random

import pytest

from camshaft.plugins.cache.token_table.forecast import Forecast


def simulated(now: list[int], left: list[int], lag: int) -> int:
    """Let all grow by a token a step until they end, and count until their pages are back."""
    return max(
        sum(
            own + min(more, step) for own, more in zip(now, left, strict=True) if step <= more + lag
        )
        for step in range(max(left) + lag + 1)
    )


@pytest.mark.parametrize(
    ("now", "left", "lag", "peak"),
    [
        ([20], [10], 0, 30),
        ([20, 30], [10, 40], 0, 70),
        ([20, 30], [10, 30], 0, 70),
        ([20, 30], [10, 30], 2, 20 + 10 + 30 + 12),
        ([20, 30, 5], [10, 10, 10], 3, 85),
    ],
)
def test_the_peak_is_right_before_pages_come_back(
    now: list[int], left: list[int], lag: int, peak: int
) -> None:
    assert Forecast(now=now, left=left).peak(lag) == peak
    assert Forecast(shared=7, now=now, left=left).peak(lag) == peak + 7


def test_the_peak_is_that_of_a_simulation() -> None:
    chance = random.Random(0)
    for _ in range(300):
        size, lag = chance.randint(1, 8), chance.randint(0, 3)
        now, left = ([chance.randint(0, 12) for _ in range(size)] for _ in range(2))
        assert Forecast(now=now, left=left).peak(lag) == simulated(now, left, lag)


def test_nobody_needs_nothing() -> None:
    assert Forecast().peak(2) == 0
