"""How quality is measured: forced reading, and the comparison of two readings."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from benchmarks.agreement import BARS, compare, continue_greedily, same_beginnings
from benchmarks.quality import missed, text
from benchmarks.teacher import read, stretches
from camshaft.errors import CamshaftError
from camshaft.request import RequestOutput, TokenLogprobs
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import VOCAB, compose_toy


def ids(count: int) -> list[int]:
    chance = random.Random(9)
    return [chance.randrange(256) for _ in range(count)]


def test_a_text_is_cut_into_windows_and_stretches_up_to_the_last_position() -> None:
    cut = stretches(list("abcdefgh"), 5, window=4, stretch=2)  # type: ignore[arg-type]
    assert [(one.first, "".join(one.prompt), "".join(one.forced)) for one in cut] == [  # type: ignore[arg-type]
        (0, "a", "bc"),
        (2, "abc", "d"),
        (3, "e", "fg"),
    ]


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(CamshaftError, match="the text has 7 positions to read, not 8"):
        stretches(range(8), 8)


def test_logits_of_every_position_are_kept_whatever_the_batches_are() -> None:
    cut = stretches(ids(70), 60, window=35, stretch=8)
    first = read(compose_toy().engine, cut, VOCAB)
    scarce: dict[str, dict[str, Any]] = {
        "scheduler": {"step_tokens": 11, "max_running": 3},
        "cache": {"memory": "16KiB"},
    }
    assert torch.equal(read(compose_toy(changes=scarce).engine, cut, VOCAB), first)


def test_they_are_those_that_the_engine_reports_for_the_same_prompt() -> None:
    work = ids(30)
    engine = compose_toy().engine
    logits = read(engine, stretches(work, 29), VOCAB)
    engine.submit(make_request("one", work[:20], 1, allowed_token_ids=(work[20],), logprobs=0))
    reported = run_to_end(engine)["one"].logprobs[0].logprob
    assert logits[19].log_softmax(0)[work[20]].item() == pytest.approx(reported, abs=1e-6)


def test_equal_logits_agree_and_cost_nothing() -> None:
    logits = torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
    found = compare(logits, logits.clone(), torch.zeros(300, dtype=torch.int64), 1e-4)
    assert (found.argmax, found.argmax_clear, found.kl_mean, found.worst_gap) == (1, 1, 0, 0)
    assert found.perplexity == found.perplexity_of_reference


def test_a_difference_counts_where_the_reference_is_clear_and_divergence_is_in_nats() -> None:
    near, far = [0.0, 0.01], [0.0, math.log(3)]  # of two: even; one to three
    wanted = torch.tensor([near, far, far])
    wanted = torch.cat([wanted, torch.full((3, 3), -200.0)], dim=1)
    got = wanted[:, [1, 0, 2, 3, 4]]
    got[2] = wanted[2]
    found = compare(got, wanted, torch.tensor([1, 1, 1]), near_tie=2e-2)
    assert found.argmax == pytest.approx(1 / 3)
    assert (found.clear, found.argmax_clear) == (2, 0.5)
    assert found.worst_gap == pytest.approx(math.log(3))
    assert found.kl_max == pytest.approx(0.5 * math.log(3))  # (3/4 - 1/4) log 3
    assert found.perplexity_of_reference == pytest.approx((2.0 * 4 / 3 * 4 / 3) ** (1 / 3), 1e-2)


def answer(*tokens: int, gaps: tuple[float, ...] = ()) -> RequestOutput:
    logprobs = [TokenLogprobs(-1.0, 1, [0, 1], [-1.0, -1.0 - gap]) for gap in gaps]
    return RequestOutput(id="a", token_ids=list(tokens), logprobs=logprobs)


def test_answers_are_compared_up_to_the_first_near_tie() -> None:
    wanted = [answer(5, 6, 7, gaps=(1.0, 0.01, 1.0)), answer(5, 6, 7, gaps=(1.0, 1.0, 1.0))]
    assert same_beginnings([answer(5, 9, 9), answer(5, 6, 7)], wanted, 2e-2) == (4, 0)
    assert same_beginnings([answer(5, 6, 7), answer(5, 9, 7)], wanted, 2e-2) == (3, 1)


def test_greedy_answers_come_back_in_the_order_of_the_prompts() -> None:
    engine = compose_toy().engine
    both = continue_greedily(engine, [ids(9), ids(4)], 6, logprobs=2)
    assert [len(one.token_ids) for one in both] == [len(one.logprobs) for one in both] == [6, 6]
    [alone] = continue_greedily(engine, [ids(4)], 6)
    assert (alone.token_ids, alone.logprobs) == (both[1].token_ids, [])


def test_a_missed_bar_is_told_in_words() -> None:
    good = {"clear_agreement": 0.996, "kl_mean": 9e-4, "greedy_answers_different": 0.0}
    assert missed(good, BARS["bfloat16"]) == []
    assert missed({**good, "kl_mean": 2e-3}, BARS["bfloat16"]) == ["kl_mean is at most 0.001"]
    assert len(missed(good, BARS["float32"])) == 2


def test_the_text_is_long_enough() -> None:
    assert len(text()) > 4 * 6000
