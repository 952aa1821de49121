from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.plugins.cache.matching import longest_match, passed_pages

DIGESTS = [bytes([place]) for place in range(12)]


def cached(*places: int) -> dict[bytes, Any]:
    return {DIGESTS[place]: object() for place in places}


@pytest.mark.parametrize(
    ("tokens", "window", "page_tokens", "passed"),
    [
        (100, 0, 4, 0),
        (8, 6, 4, 0),
        (9, 6, 4, 1),
        (12, 6, 4, 1),
        (13, 6, 4, 2),
        (8, 1, 4, 2),
        (7, 1, 4, 1),
        (3, 8, 4, 0),
        (16, 16, 16, 0),
        (31, 16, 16, 1),
    ],
)
def test_a_page_is_passed_when_the_next_query_sees_none_of_it(
    tokens: int, window: int, page_tokens: int, passed: int
) -> None:
    seen = range(max(0, tokens - window + 1) if window else 0, tokens + 1)
    assert passed == seen[0] // page_tokens
    assert passed_pages(tokens, window, page_tokens) == passed


def test_a_full_group_serves_up_to_its_first_gap() -> None:
    assert longest_match([cached(0, 1, 3)], [0], DIGESTS, 12, 4) == 2
    assert longest_match([cached(1, 2)], [0], DIGESTS, 12, 4) == 0


def test_a_sliding_group_serves_what_its_window_covers() -> None:
    assert longest_match([cached(5, 6)], [6], DIGESTS, 12, 4) == 7
    assert longest_match([cached(5)], [6], DIGESTS, 12, 4) == 0
    assert longest_match([cached(0)], [6], DIGESTS, 12, 4) == 1


def test_groups_agree_on_a_length_that_suits_all() -> None:
    full, sliding = cached(0, 1, 2, 3, 4, 5), cached(0, 1, 2, 4)
    assert longest_match([full, sliding], [0, 6], DIGESTS, 12, 4) == 3
    assert longest_match([sliding, full], [6, 0], DIGESTS, 12, 4) == 3


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_what_trying_every_length_finds(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        windows = [chance.choice([0, 1, 3, 6, 9]) for _ in range(chance.randint(1, 3))]
        size, limit = chance.choice([1, 2, 4]), chance.randint(0, 12)
        indexes = [
            cached(*(place for place in range(12) if chance.random() < 0.75)) for _ in windows
        ]
        fits = [
            length
            for length in range(limit + 1)
            if all(
                DIGESTS[place] in index
                for index, window in zip(indexes, windows, strict=True)
                for place in range(passed_pages(length * size, window, size), length)
            )
        ]
        assert longest_match(indexes, windows, DIGESTS, limit, size) == fits[-1]
