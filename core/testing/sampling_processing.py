"""Tests of what a sampler does to logits before it chooses, and of the logprobs it reports."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.sampling import LogitsProcessor
from .sampling_making import MENU, VOCAB, SamplerMaking, menu
from .sampling_play import Ask, Play, logprobs_of, params, row_context

if TYPE_CHECKING:
    from ..contracts.sampling import RowContext, Sampled, SamplerSpec
    from ..step import Admissions


class ProcessingTests(SamplerMaking):
    """Part of `SamplerContract`."""

    def test_masks_are_obeyed_by_every_parameter(self) -> None:
        """Also in the last word of a mask, which is not full."""
        asks = menu()
        play = Play(self.sampler(), VOCAB).start(*asks)
        only = [2, 3, 31, 32, 49]
        masks = torch.zeros((len(asks), 2), dtype=torch.int32)
        for token in only:
            masks[:, token // 32] |= torch.tensor(1 << token % 32).to(torch.int32)
        for _ in range(6):
            logits = torch.randn(len(asks), VOCAB, generator=torch.Generator().manual_seed(1))
            sampled = play.sampler.sample(logits, row_context(range(len(asks))), masks)
            assert set(sampled.tokens.flatten().tolist()) <= set(only)
            assert sampled.finite.all()

    def test_a_full_mask_changes_nothing(self) -> None:
        """As rows without a grammar have it beside rows with one."""
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)).tolist()
        full = torch.full((1, 2), -1, dtype=torch.int32)
        for one in MENU:
            masked = self.choose(logits, Ask(0, one), masks=full)
            assert masked.tokens.tolist() == self.choose(logits, Ask(0, one)).tokens.tolist()

    def test_bias_is_added_and_cannot_revive_a_forbidden_id(self) -> None:
        """Mask and allowed ids come first."""
        assert self.ids([1.0, 0.0, 0.0], params(0.0, {2: 1.5})) == 2
        mask = torch.tensor([[0b011]], dtype=torch.int32)
        ask = Ask(0, params(0.0, {2: 100.0}))
        assert self.choose([[1.0, 0.0, 0.0]], ask, masks=mask).tokens.item() == 0
        only = params(0.0, {2: 100.0}, allowed_token_ids=(0, 1))
        assert self.ids([1.0, 0.0, 0.0], only) == 0

    def test_bias_comes_before_penalties(self) -> None:
        """The order shows where a logit changes its sign."""
        # -1 + 2 = 1, halved: 0.5. Were it the other way round: -1 doubled, + 2 = 0.
        one = params(0.0, {0: 2.0}, repetition_penalty=2.0)
        assert self.ids([-1.0, 0.25], one, prompt=(0,)) == 0

    def test_presence_and_frequency_penalties_count_outputs_only(self) -> None:
        """Once, and once for each time; the prompt does not count."""
        one = params(0.0, presence_penalty=0.5, frequency_penalty=0.25)
        logits = [1.0, 0.9, 0.3]
        assert self.ids(logits, one, prompt=(0, 0, 0)) == 0
        assert self.ids(logits, one, prompt=(0,), outputs=(0,)) == 1  # 0.25, 0.9, 0.3
        assert self.ids(logits, one, outputs=(0, 1, 1)) == 2  # 0.25, -0.1, 0.3

    def test_repetition_penalty_counts_prompt_and_outputs_once(self) -> None:
        """Divides positive and multiplies negative logits."""
        one = params(0.0, repetition_penalty=2.0)
        assert self.ids([2.0, 1.5], one, prompt=(0, 0)) == 1  # 1, 1.5
        assert self.ids([2.0, 0.9], one, prompt=(0, 0), outputs=(0,)) == 0  # 1, 0.9
        assert self.ids([-1.0, -1.5], one, prompt=(1,), outputs=(0,)) == 0  # -2, -3
        assert self.ids([-1.0, -1.5], one, prompt=(0,)) == 1  # -2, -1.5

    def test_bad_words_look_at_outputs_only(self) -> None:
        """Only the last id of a word is forbidden, only right behind the others."""
        logits = [0.0, 0.0, 1.0, 0.5]
        one = params(0.0, bad_words=((0, 1, 2), (1, 3)))
        assert self.ids(logits, one, prompt=(0, 1)) == 2
        assert self.ids(logits, one, outputs=(1,)) == 2
        assert self.ids(logits, one, outputs=(0, 1)) == 0
        assert self.ids(logits, one, outputs=(0, 1, 0)) == 2
        assert self.ids(logits, params(0.0, bad_words=((2,),))) == 3

    def test_stop_ids_are_released_at_min_tokens(self) -> None:
        """Not one token later."""
        one = params(0.0, {3: 100.0}, min_tokens=2)
        logits = [0.0, 0.0, 1.0, 0.5]
        outputs = [(), (0,), (0, 0)]
        chosen = [self.ids(logits, one, outputs=some, stops=(3,)) for some in outputs]
        assert chosen == [2, 2, 3]

    def test_extra_processors_come_last_in_their_order_and_before_temperature(self) -> None:
        """They see bias and bans, and temperature does not reach them."""
        seen: list[list[float]] = []
        one = params(2.0, {0: 1.0}, top_k=1, bad_words=((1,),))
        add, double = _Probe(seen, add=2.0), _Probe(seen, times=2.0)
        sampled = self.choose([[1.0, 5.0, 2.5]], Ask(0, one), processors=(add, double))
        assert seen == [[2.0, -math.inf, 2.5], [4.0, -math.inf, 4.5]]
        assert sampled.tokens.item() == 2

    def test_processors_are_admitted_and_told_what_was_chosen(self) -> None:
        """The sampler passes both on."""
        probe = _Probe([], add=1.0)
        self.choose([[0.0, 1.0]], Ask(0, params(0.0)), processors=(probe,))
        assert probe.slots == [0]
        assert probe.tokens == [[1]]

    def test_logprobs_are_of_the_raw_logits(self) -> None:
        """No parameter reaches them; equal ones rank by id."""
        logits = [2.0, 1.0, 0.0, 1.0]
        total = math.log(sum(math.exp(one) for one in logits))
        one = params(0.5, {0: -50.0, 2: 50.0}, top_k=2, repetition_penalty=1.5, logprobs=3)
        [found] = logprobs_of(self.choose([logits], Ask(0, one)), 0)
        assert math.isclose(found.logprob, 0.0 - total, abs_tol=1e-5)
        assert found.rank == 4
        assert found.top_ids == [0, 1, 3]
        assert np.allclose(found.top_logprobs, [2.0 - total, 1.0 - total, 1.0 - total], atol=1e-5)

    def test_given_tokens_are_reported_as_chosen_ones_are(self) -> None:
        """Each row its token and its number of alternatives; NaN where the logits are faulty."""
        logits = torch.tensor([[2.0, 1.0, 0.0, 1.0]] * 3 + [[math.nan, 1.0, 0.0, 1.0]])
        sampler = self.sampler(vocab=4)
        tokens, wanted = torch.tensor([3, 0, 2, 1]), torch.tensor([3, 0, 1, 2])
        found = sampler.logprobs(logits.clone(), tokens, wanted, 3)
        total = math.log(sum(math.exp(one) for one in (2, 1, 0, 1)))
        expected = [1.0 - total, 2.0 - total, 0.0 - total]
        assert np.allclose(found.chosen[:3].tolist(), expected, atol=1e-5)
        assert found.rank[:3].tolist() == [3, 1, 4]
        ids = [[one for one in row if one >= 0] for row in found.ids[:3].tolist()]
        assert ids == [[0, 1, 3], [], [0]]
        assert math.isclose(float(found.values[2, 0]), 2.0 - total, abs_tol=1e-5)
        assert math.isnan(found.chosen[3])
        assert (found.request.tolist(), found.offset.tolist()) == ([0, 1, 2, 3], [0] * 4)

    def test_only_requests_that_ask_get_logprobs_each_its_number(self) -> None:
        """Nought means the chosen token's alone; the vocabulary is the most."""
        wants = [None, 0, 2, 9]
        asks = [Ask(slot, params(0.0, logprobs=want)) for slot, want in enumerate(wants)]
        sampled = self.choose([[1.0, 3.0, 2.0]] * 4, *asks)
        found = [[len(one.top_ids) for one in logprobs_of(sampled, place)] for place in range(4)]
        assert found == [[], [0], [2], [3]]

    def test_alternatives_without_probability_are_left_out(self) -> None:
        """They have no number that JSON could carry."""
        sampled = self.choose([[0.0, -math.inf, 1.0]], Ask(0, params(logprobs=3)))
        assert logprobs_of(sampled, 0)[0].top_ids == [2, 0]


class _Probe(LogitsProcessor):
    """Adds to and multiplies the logits; notes what it sees."""

    def __init__(self, seen: list[list[float]], add: float = 0.0, times: float = 1.0) -> None:
        self.seen = seen
        self.add, self.times = add, times
        self.slots: list[int] = []
        self.tokens: list[list[int]] = []

    def attach(self, spec: SamplerSpec) -> None:
        self.vocab = spec.vocab

    def admit(self, admissions: Admissions) -> None:
        self.slots.extend(admissions.slots.tolist())

    def active(self, rows: RowContext) -> bool:
        return True

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        assert logits.shape == (len(rows.row_request), self.vocab)
        self.seen.extend(logits.tolist())
        logits.add_(self.add).mul_(self.times)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        self.tokens.extend(sampled.tokens.tolist())
