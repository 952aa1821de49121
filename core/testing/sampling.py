"""What every sampler must hold. Subclass `SamplerContract` and say how yours is made."""

from __future__ import annotations

import math

import torch

from .sampling_choice import ChoiceTests
from .sampling_making import MENU, VOCAB, menu
from .sampling_play import Ask, Play, admit, params, row_context, same_logprobs
from .sampling_processing import ProcessingTests
from .sampling_recorded import RecordedTests


class SamplerContract(ChoiceTests, ProcessingTests, RecordedTests):
    """Inherit the tests; implement `make`. Here: batches, slots and faults."""

    def test_results_have_the_shapes_and_dtypes_of_the_contract(self) -> None:
        """Callers rely on them without looking."""
        sampled = self.choose([[0.0, 1.0]] * 3, *(Ask(slot, params()) for slot in range(3)))
        assert sampled.tokens.shape == (3, 1)
        assert sampled.tokens.dtype == sampled.counts.dtype == torch.int64
        assert sampled.counts.tolist() == [1, 1, 1]
        assert sampled.finite.tolist() == [True, True, True]
        assert sampled.logprobs is None

    def test_a_row_does_not_depend_on_its_neighbours(self) -> None:
        """Alone and in a batch with every other sort of request: the same tokens."""
        asks = menu()
        order = list(range(len(asks)))
        together = self.play(asks, order)
        for ask in asks:
            alone = self.play([ask], [ask.slot])
            assert alone.outputs[ask.slot] == together.outputs[ask.slot], ask
            found, expected = (one.logprobs[ask.slot] for one in (alone, together))
            assert same_logprobs(found, expected), ask

    def test_the_order_of_a_batch_changes_nothing(self) -> None:
        """Forwards and backwards."""
        asks = menu()
        order = list(range(len(asks)))
        assert self.play(asks, order).outputs == self.play(asks, order[::-1]).outputs

    def test_requests_may_sit_out_steps(self) -> None:
        """What counts is how many tokens a request has, not how many steps there were."""
        asks = menu()
        play = Play(self.sampler(), VOCAB).start(*asks)
        for step in range(24):
            play.step([ask.slot for ask in asks if (ask.slot + step) % 3])
        expected = self.play(asks, range(len(asks)), steps=16)
        assert play.outputs == expected.outputs

    def test_a_slot_forgets_its_last_request(self) -> None:
        """Parameters, histories and counts of the old request are void."""
        for old in menu():
            play = Play(self.sampler(), VOCAB)
            play.start(Ask(0, old.params, 5, (1, 2, 3), stops=(8, 9))).run([0], 3)
            for new in (Ask(0, params()), Ask(0, params(0.0, repetition_penalty=1.5))):
                fresh = Play(self.sampler(), VOCAB).start(new).run([0], 6)
                assert play.start(new).run([0], 6) == fresh, old

    def test_a_preempted_request_goes_on_in_another_slot(self) -> None:
        """Admitted with its outputs, it continues as if nothing had happened."""
        for ask in menu():
            whole = self.play([ask], [ask.slot]).outputs[ask.slot]
            outputs = tuple(whole[:3])
            again = Ask(1, ask.params, ask.seed, ask.prompt, outputs, ask.stops)
            assert self.play([again], [1], steps=5).outputs[1] == whole[3:], ask

    def test_a_row_that_is_not_finite_is_reported_and_hurts_nobody(self) -> None:
        """NaN, infinity and nothing but minus infinity."""
        good = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)).tolist()
        holes = [[math.nan, *good[1:]], [math.inf, *good[1:]], [-math.inf] * VOCAB]
        for one in MENU:
            asks = [Ask(slot, one, seed=7) for slot in range(4)]
            sampled = self.choose([*holes, good], *asks)
            assert sampled.finite.tolist() == [False, False, False, True]
            assert sampled.tokens[:3].tolist() == [[0], [0], [0]]
            alone = self.choose([good], Ask(0, one, seed=7))
            assert sampled.tokens[3].tolist() == alone.tokens[0].tolist()

    def test_a_fault_is_seen_where_the_token_is_forbidden(self) -> None:
        """The logits are wrong, even if this token was not to be had."""
        one = params(allowed_token_ids=(1, 2))
        assert self.choose([[math.nan, 1.0, 2.0]], Ask(0, one)).finite.tolist() == [False]

    def test_a_request_without_an_allowed_token_is_reported(self) -> None:
        """As when mask and allowed ids have nothing in common."""
        ask = Ask(0, params(), stops=(1,))
        mask = torch.tensor([[0b100]], dtype=torch.int32)
        assert self.choose([[0.0] * 3], ask, masks=mask).finite.tolist() == [True]
        mask = torch.tensor([[0b000]], dtype=torch.int32)
        sampled = self.choose([[0.0] * 3], ask, masks=mask)
        assert sampled.finite.tolist() == [False]
        assert sampled.tokens.tolist() == [[0]]

    def test_a_fault_behind_a_rejected_draft_does_not_count(self) -> None:
        """Without drafts nobody would have seen it."""
        sampler = self.sampler(max_drafts=1)
        sampler.admit(admit(Ask(0, params(0.0)), Ask(1, params(0.0))))
        logits = torch.tensor([[1.0, 0.0], [math.nan, 0.0]] * 2)
        rows = row_context([0, 1], [[1], [0]], max_drafts=1)
        sampled = sampler.sample(logits, rows, None)
        assert sampled.finite.tolist() == [True, False]
        assert int(sampled.tokens[0, 0]) == 0
        assert int(sampled.counts[0]) == 1
