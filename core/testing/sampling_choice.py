"""Tests of a sampler's choice: greedy, random, and with drafts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from .sampling_making import VOCAB, SamplerMaking, menu
from .sampling_play import Ask, Play, admit, params, row_context, same_logprobs

if TYPE_CHECKING:
    from ..request import SamplingParams


class ChoiceTests(SamplerMaking):
    """Part of `SamplerContract`."""

    def test_equal_seeds_give_equal_tokens_and_others_do_not(self) -> None:
        """Under equal logits, whatever the slot."""
        logits = [[0.0] * VOCAB]
        sampler = self.sampler()
        sampler.admit(admit(*(Ask(slot, params(), seed=slot // 2) for slot in range(4))))
        draws = [
            sampler.sample(torch.tensor(logits * 4), row_context(range(4)), None).tokens
            for _ in range(12)
        ]
        first, same, other, again = torch.cat(draws, dim=1).tolist()
        assert first == same
        assert other == again
        assert first != other
        assert len(set(first)) > 1

    def test_greedy_takes_the_lowest_of_the_best_ids(self) -> None:
        """Whatever makes a request greedy, ties go the same way."""
        logits = [0.0, 2.0, 1.0, 2.0, 2.0]
        greedy = (params(0.0), params(1e-4), params(1e-6), params(1e-30))
        for one in (*greedy, params(top_k=1), params(top_p=1e-9), params(min_p=1.0)):
            assert self.ids(logits, one) == 1, one

    def test_extreme_logits_and_temperatures_overflow_nowhere(self) -> None:
        """The other tokens have no probability to speak of, at any temperature."""
        logits = [-3e38, 3e38, 0.0, -math.inf]
        for one in (params(), params(2e-4), params(1e30, top_k=3), params(1e30, top_p=0.999)):
            sampled = self.choose([logits], Ask(0, one))
            assert sampled.finite.tolist() == [True]
            assert sampled.tokens.tolist() == [[1]]

    def test_limits_that_exclude_nothing_are_off(self) -> None:
        """A top-k of 0, of the vocabulary and of more: equal tokens for equal seeds."""
        plain = self.play([Ask(0, params())], [0]).outputs
        for top_k in (0, VOCAB, VOCAB + 1, 10**9):
            assert self.play([Ask(0, params(top_k=top_k))], [0]).outputs == plain

    def test_draws_follow_the_distribution(self) -> None:
        """Chi-square against temperature, top-k, top-p and min-p in this order."""
        logits = np.array([1.0, 0.5, 0.0, -0.5, 1.5, -1.0, 0.2, 0.9])
        for one in (
            params(),
            params(0.6),
            params(1.5, top_k=5),
            params(top_p=0.75),
            params(min_p=0.3),
            params(1.2, top_k=6, top_p=0.8, min_p=0.25),
        ):
            expected = expected_distribution(logits, one)
            counts = self._count(logits, one)
            assert counts[expected == 0].sum() == 0, one
            wanted = expected[expected > 0] * counts.sum()
            surprise = ((counts[expected > 0] - wanted) ** 2 / wanted).sum()
            # chi-square: 7 degrees of freedom or fewer exceed this once in 10,000 times
            assert surprise < 29.9, one

    def _count(self, logits: np.ndarray, one: SamplingParams) -> np.ndarray:
        """Return how often each id is chosen."""
        slots, steps = 250, self.draws // 250
        sampler = self.sampler(slots, len(logits))
        sampler.admit(admit(*(Ask(slot, one, seed=slot) for slot in range(slots))))
        rows = row_context(range(slots))
        table = torch.tensor(np.tile(logits, (slots, 1)), dtype=torch.float32)
        draws = [sampler.sample(table.clone(), rows, None).tokens for _ in range(steps)]
        return np.bincount(torch.cat(draws).flatten().numpy(), minlength=len(logits))

    def test_drafts_never_change_the_output(self) -> None:
        """Right, wrong and partly right drafts give the tokens and logprobs of none."""
        asks = menu()
        plain = self.play(asks, range(len(asks)), steps=20)
        for wrong_at in (0, 1, 2, 3):
            play = Play(self.sampler(max_drafts=3), VOCAB, max_drafts=3).start(*asks)
            for step in range(5):
                play.step(range(len(asks)), self._drafts(plain, play, wrong_at, step))
            for ask in asks:
                outputs = play.outputs[ask.slot]
                assert outputs == plain.outputs[ask.slot][: len(outputs)], ask
                expected = plain.logprobs[ask.slot][: len(play.logprobs[ask.slot])]
                assert same_logprobs(play.logprobs[ask.slot], expected), ask

    def test_right_drafts_are_accepted_and_wrong_ones_are_not(self) -> None:
        """A draft counts up to its first wrong token, which is replaced."""
        asks = [Ask(slot, params(), seed=slot) for slot in range(4)]
        plain = self.play(asks, range(4), steps=4)
        play = Play(self.sampler(max_drafts=3), VOCAB, max_drafts=3).start(*asks)
        play.step(range(4), {slot: self._draft(plain, play, slot, 3, slot) for slot in range(4)})
        # the draft of slot s is wrong at place s
        assert [len(play.outputs[slot]) for slot in range(4)] == [1, 2, 3, 4]

    def _drafts(self, plain: Play, play: Play, wrong_at: int, step: int) -> dict[int, list[int]]:
        return {
            slot: self._draft(plain, play, slot, (slot + step) % 4, wrong_at)
            for slot in plain.outputs
        }

    @staticmethod
    def _draft(plain: Play, play: Play, slot: int, count: int, wrong_at: int) -> list[int]:
        """Return what the request will choose, but for one place."""
        at = len(play.outputs[slot])
        draft = plain.outputs[slot][at : at + count]
        return [(one + 1) % VOCAB if i == wrong_at else one for i, one in enumerate(draft)]


def expected_distribution(logits: np.ndarray, one: SamplingParams) -> np.ndarray:
    """Return the probabilities of `logits` [V] after temperature, top-k, top-p and min-p."""
    odds = np.exp(logits.astype(np.float64) / one.temperature)
    order = np.argsort(-logits, kind="stable")
    if one.top_k:
        odds[order[one.top_k :]] = 0
    share = odds[order] / odds.sum()
    odds[order[np.cumsum(share) - share >= one.top_p]] = 0
    odds[odds < one.min_p * odds.max()] = 0
    distribution: np.ndarray = odds / odds.sum()
    return distribution
