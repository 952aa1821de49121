from __future__ import annotations

from dataclasses import replace

import pytest

from camshaft.contracts.cache import Delta, Prefix, Wait
from camshaft.plugins.cache.components import TokenTableSettings
from camshaft.plugins.cache.token_table.lengths import Lengths
from camshaft.plugins.cache.token_table.manager import TokenTable
from camshaft.testing.cache_driver import make_spec

PROMPT = [1, 2, 3]


def asks_for(outputs: int, so_far: int = 0) -> Prefix:
    return Prefix([*PROMPT, *[9] * so_far], most_tokens=len(PROMPT) + outputs)


def answered(lengths: Lengths, uid: int, outputs: int) -> None:
    prefix = asks_for(1000)
    lengths.expected(prefix)
    lengths.opened(uid)
    prefix.tokens += [9] * outputs
    lengths.ended(uid, prefix)


def test_without_learning_a_share_of_what_may_be_written_is_expected() -> None:
    lengths = Lengths(0.25)
    for uid in range(50):
        answered(lengths, uid, 7)
    assert lengths.expected(asks_for(100)) == 3 + 25


def test_the_worst_is_expected_until_sixteen_answers_have_ended() -> None:
    lengths = Lengths("learned")
    for uid in range(15):
        answered(lengths, uid, 7)
    assert lengths.expected(asks_for(100)) == 103
    answered(lengths, 15, 7)
    assert lengths.expected(asks_for(100)) == 10
    assert lengths.expected(asks_for(5)) == 8


def test_nine_in_ten_answers_are_no_longer_than_expected() -> None:
    lengths = Lengths("learned")
    for uid in range(100):
        answered(lengths, uid, uid + 1)
    assert lengths.expected(asks_for(1000)) == 3 + 90


def test_the_last_256_answers_count() -> None:
    lengths = Lengths("learned")
    for uid in range(300):
        answered(lengths, uid, 500 if uid < 44 else 20)
    assert lengths.expected(asks_for(1000)) == 23


def test_a_preempted_request_has_not_ended() -> None:
    lengths = Lengths("learned")
    for uid in range(16):
        answered(lengths, uid, 200 if uid else 1)
    for uid in range(1, 16):
        lengths.opened(uid)  # they go on
        answered(lengths, uid, 50)
    assert lengths.expected(asks_for(1000)) == 53


def test_a_prompt_is_what_was_known_when_the_request_was_seen_first() -> None:
    lengths = Lengths(0.5)
    prefix = asks_for(100)
    assert lengths.expected(prefix) == 53
    prefix.tokens += [9] * 60  # and was preempted
    assert lengths.expected(prefix) == 53


@pytest.mark.parametrize(("share", "fits"), [(1.0, False), ("learned", True)])
def test_more_requests_run_at_once_where_answers_turn_out_to_be_short(
    share: float, fits: bool
) -> None:
    settings = TokenTableSettings.model_validate({"expected_share": share})
    cache = TokenTable(settings, replace(make_spec(100), page_tokens=1))
    for uid in range(16):
        prefix = Prefix([100 + uid] * 10, most_tokens=60)
        assert isinstance(cache.allocate(uid, prefix, 15), Delta)
        prefix.tokens += [9] * 5
        cache.free(uid, 0)
    assert isinstance(cache.allocate(100, Prefix([1] * 10, most_tokens=60), 10), Delta)
    second = cache.allocate(101, Prefix([2] * 10, most_tokens=60), 10)
    assert isinstance(second, Delta if fits else Wait)
