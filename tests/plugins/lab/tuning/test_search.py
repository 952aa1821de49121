"""The search finds the split that the model of a device favours, and says from when on."""

from __future__ import annotations

import pytest

from camshaft.plugins.lab.tuning.costs import Mix
from camshaft.plugins.lab.tuning.search import Compared, minimum_tokens, search, sizes
from camshaft.plugins.lab.tuning.splits import Split
from tests.plugins.lab.tuning.costs import costs


def test_decodes_beside_prompts_win_where_attention_hides_behind_products() -> None:
    tuned = search(costs(), Mix(10, 10))
    assert tuned.best == Split("phase")
    last = tuned.steps[-1]
    assert (last.mix, last.tokens) == (Mix(10, 10), 1010)
    # 1,010 s of products, 1,000 of decodes and 10 of prompts in each of 10 layers, and 1 at the end
    assert last.whole_s == pytest.approx(20_201)
    assert last.split_s == pytest.approx(10_201)  # decodes are hidden
    assert [one.mix for one in tuned.steps if one.gain > 0.4][-1] == Mix(10, 10)


def test_nothing_is_gained_where_each_part_reads_the_weights_for_long() -> None:
    tuned = search(costs(weights_s=500.0), Mix(10, 10))
    assert tuned.minimum_tokens is None
    assert tuned.steps[-1].gain < 0


def test_a_difference_is_noise_where_all_runs_in_order() -> None:
    tuned = search(costs(overlap=0.0), Mix(10, 10))
    assert tuned.minimum_tokens is None


def test_of_splits_that_are_about_as_good_one_with_few_parts_is_taken() -> None:
    tuned = search(costs(weights_s=1.0), Mix(0, 8))
    assert tuned.best.parts == 2
    assert tuned.tried[-1][0].parts == 3
    first, best = tuned.tried[0][1], dict(tuned.tried)[tuned.best]
    assert first <= best <= 1.01 * first


def test_every_split_that_cuts_is_ranked() -> None:
    tuned = search(costs(), Mix(10, 10))
    seconds = [one for _, one in tuned.tried]
    assert seconds == sorted(seconds)
    assert len(seconds) == 29
    assert {split.by for split, _ in search(costs(), Mix(0, 4)).tried} == {"tokens"}


def test_steps_grow_by_decodes_and_then_by_prompts() -> None:
    assert sizes(Mix(8, 4)) == [
        (2, 0), (4, 0), (6, 0), (8, 0), (8, 1), (8, 2), (8, 3), (8, 4),
    ]  # fmt: skip
    assert sizes(Mix(0, 2)) == [(0, 1), (0, 2)]


def test_the_minimum_is_where_all_larger_steps_gain() -> None:
    def step(tokens: int, split_s: float) -> Compared:
        return Compared(Mix(tokens, 0), tokens, 1.0, split_s)

    gaining = [step(10, 0.9), step(20, 0.99), step(30, 0.95), step(40, 0.9)]
    assert minimum_tokens(gaining) == 30
    assert minimum_tokens(gaining[:2]) is None
    assert minimum_tokens([]) is None
