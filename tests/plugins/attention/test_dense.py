from __future__ import annotations

import numpy as np
import pytest

from camshaft.plugins.attention.dense import DenseCall, covered_tokens, dense_calls, pieces


def calls_of(*sequences: tuple[int, int], least: int = 16) -> list[DenseCall]:
    """Cut requests of (context, new tokens) into blocks of 8."""
    starts = np.cumsum([0, *(count for _, count in sequences)]).astype(np.int32)
    context = np.array([before for before, _ in sequences], np.int32)
    return dense_calls(starts, context, least, 8)


def test_a_prompt_of_whole_blocks_is_one_call() -> None:
    assert calls_of((0, 24)) == [DenseCall(0, 0, 1, 24, 24, 0, 0, 24)]


def test_a_short_request_is_left_to_others() -> None:
    assert calls_of((0, 15), (40, 1)) == []


def test_no_request_below_a_block_is_chosen() -> None:
    assert calls_of((0, 7), least=1) == []


def test_a_few_tokens_more_than_blocks_are_left_over() -> None:
    calls = calls_of((0, 27))
    assert calls == [DenseCall(0, 0, 1, 24, 24, 0, 0, 27)]
    assert covered_tokens(calls, 1).tolist() == [24]


def test_many_tokens_more_than_blocks_are_padded() -> None:
    calls = calls_of((0, 29))
    assert calls == [DenseCall(0, 0, 1, 29, 32, 0, 0, 29)]
    assert calls[0].padded


def test_rows_in_front_bring_the_context_to_whole_blocks() -> None:
    # context 21 = 16 + 5 in front; 5 + 27 tokens are 4 blocks
    assert calls_of((21, 27)) == [DenseCall(0, 0, 1, 27, 32, 5, 16, 48)]


def test_a_request_that_would_be_half_padding_is_not_chosen() -> None:
    assert calls_of((7, 9), least=8) == calls_of((15, 9), least=8) == []
    assert len(calls_of((8, 9), least=8)) == 1


def test_equal_neighbours_share_a_call() -> None:
    calls = calls_of((0, 1), (0, 16), (0, 16))
    assert calls == [DenseCall(1, 1, 2, 16, 16, 0, 0, 16)]
    assert covered_tokens(calls, 3).tolist() == [0, 16, 16]


def test_batches_are_powers_of_two() -> None:
    assert [one.batch for one in calls_of(*[(0, 16)] * 7)] == [4, 2, 1]


@pytest.mark.parametrize("between", [(0, 24), (8, 16), (0, 17), (0, 3)])
def test_only_neighbours_without_padding_context_or_rest_share_a_call(
    between: tuple[int, int],
) -> None:
    assert {one.batch for one in calls_of((0, 16), between, (0, 16))} == {1}


def test_a_context_is_cut_into_powers_of_two() -> None:
    assert list(pieces(13 * 8, 8)) == [(0, 64), (64, 32), (96, 8)]
    assert list(pieces(0, 8)) == []


def test_no_piece_of_a_context_is_larger_than_16_blocks() -> None:
    assert list(pieces(40 * 8, 8)) == [(0, 128), (128, 128), (256, 64)]
