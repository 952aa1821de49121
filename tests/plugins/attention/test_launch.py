from __future__ import annotations

import numpy as np
import pytest

from camshaft.plugins.attention.launch import (
    Blocks,
    decode_blocks,
    decode_cut,
    most_programs,
    query_tiles,
    split_count,
)


def test_a_full_device_needs_no_splits() -> None:
    assert decode_cut([Blocks(16, 64, 4, 3)], 2048, 1024, 132, 128)[1] == 1


def test_a_lone_request_fills_the_device() -> None:
    assert split_count(pairs=8, slots=396, most=128) == 48


def test_a_short_request_is_not_cut_below_a_tile() -> None:
    assert decode_cut([Blocks(16, 64, 4, 3)], 8, 150, 132, 128)[1] == 3


def test_a_third_of_a_wave_is_cut_in_three() -> None:
    assert split_count(pairs=128, slots=396, most=16) == 3


def test_the_setting_bounds_the_splits() -> None:
    assert decode_cut([Blocks(16, 64, 4, 3)], 1, 64000, 132, 5)[1] == 5


def test_scratch_holds_every_choice() -> None:
    for is_busy in (False, True):
        candidates = decode_blocks(2, 128, 2, is_busy=is_busy)
        for pairs in range(1, 600):
            _, splits = decode_cut(candidates, pairs, 64000, 132, 128)
            assert splits == 1 or pairs * splits <= most_programs(132)


@pytest.mark.parametrize(
    ("requests", "length", "keys", "splits"),
    [(256, 1100, 64, 1), (140, 1100, 128, 1), (16, 16500, 128, 3)],
)
def test_tiles_are_as_wide_as_was_fastest(
    requests: int, length: int, keys: int, splits: int
) -> None:
    candidates = decode_blocks(2, 128, 2, is_busy=True)
    blocks, cut = decode_cut(candidates, requests * 8, length, 132, 128)
    assert (blocks.keys, cut) == (keys, splits)


def test_latency_wants_narrow_tiles() -> None:
    assert [one.keys for one in decode_blocks(2, 128, 2, is_busy=False)] == [64]


def test_tiles_with_most_keys_start_first() -> None:
    tiles = query_tiles(np.array([5, 2], np.int32), np.array([0, 100], np.int32), tokens=4)
    assert tiles.tolist() == [[1, 0], [0, 4], [0, 0]]
