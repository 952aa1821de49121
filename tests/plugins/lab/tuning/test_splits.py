"""Splits of a step cut between requests, and all shares in eighths are tried."""

from __future__ import annotations

import pytest

from camshaft.plugins.lab.tuning.costs import Mix
from camshaft.plugins.lab.tuning.splits import Split, candidates


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        ((0.5, 0.5), [Mix(100, 4), Mix(0, 5)]),
        ((0.125, 0.875), [Mix(100, 0), Mix(0, 9)]),
        ((0.0625, 0.9375), [Mix(62, 0), Mix(38, 9)]),
        ((0.25, 0.25, 0.5), [Mix(100, 2), Mix(0, 2), Mix(0, 5)]),
    ],
)
def test_shares_are_of_tokens_and_those_that_decode_come_first(
    shares: tuple[float, ...], parts: list[Mix]
) -> None:
    assert Split("tokens", shares).cut(Mix(100, 9), length=100) == parts


def test_by_phase_those_that_decode_are_one_part() -> None:
    assert Split("phase").cut(Mix(8, 3), 100) == [Mix(8, 0), Mix(0, 3)]
    assert Split("phase").cut(Mix(8, 0), 100) == [Mix(8, 0)]


def test_every_part_has_a_request() -> None:
    assert Split("tokens", (0.125, 0.875)).cut(Mix(0, 2), 100) == [Mix(0, 1), Mix(0, 1)]
    assert Split("tokens", (0.125, 0.125, 0.75)).cut(Mix(0, 2), 100) == [Mix(0, 1), Mix(0, 1)]


def test_the_grid_has_every_way_to_share_eighths_among_two_or_three() -> None:
    splits = list(candidates())
    assert len(splits) == len(set(splits)) == 1 + 7 + 21
    assert all(sum(one.shares) == 1.0 for one in splits if one.shares)
    assert [str(one) for one in splits[:2]] == ["by phase", "tokens 0.125/0.875"]
