from __future__ import annotations

import numpy as np

from camshaft.plugins.attention.launch import most_programs, query_tiles, split_count


def test_a_full_device_needs_no_splits() -> None:
    assert split_count(pairs=2048, tiles=16, processors=132, most=128) == 1


def test_a_lone_request_fills_the_device() -> None:
    assert split_count(pairs=8, tiles=256, processors=132, most=128) == 48


def test_a_short_request_is_not_cut_below_a_tile() -> None:
    assert split_count(pairs=8, tiles=3, processors=132, most=128) == 3


def test_a_third_of_a_wave_is_cut_in_three() -> None:
    assert split_count(pairs=128, tiles=16, processors=132, most=128) == 3


def test_the_setting_bounds_the_splits() -> None:
    assert split_count(pairs=1, tiles=1000, processors=132, most=5) == 5


def test_scratch_holds_every_choice() -> None:
    for pairs in range(1, 600):
        splits = split_count(pairs, 1000, 132, 128)
        assert splits == 1 or pairs * splits <= most_programs(132)


def test_tiles_with_most_keys_start_first() -> None:
    tiles = query_tiles(np.array([5, 2], np.int32), np.array([0, 100], np.int32), tokens=4)
    assert tiles.tolist() == [[1, 0], [0, 4], [0, 0]]
