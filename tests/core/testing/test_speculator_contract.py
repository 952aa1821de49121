from __future__ import annotations

import pytest
import torch

from camshaft.contracts.speculator import Speculator
from camshaft.testing.rejects import failures
from camshaft.testing.speculator import SpeculatorContract

VOCAB = 64


class Bigrams(Speculator):
    """Drafts what followed the last time, slot by slot."""

    def __init__(self, draft_tokens: int, slots: int, device: str) -> None:
        self.draft_tokens = draft_tokens
        self.follower = torch.full((slots, VOCAB + 1), -1, device=device)
        self.last = torch.full((slots,), -1, device=device)
        self.accepted = 0

    def kv_spec(self):
        return None

    def verify(self, rows, sampled):
        for row, slot in enumerate(rows.slots.tolist()):
            for token in self.valid(sampled, row):
                self.follower[slot, self.last[slot]] = token
                self.last[slot] = token

    def valid(self, sampled, row):
        return sampled.tokens[row, : sampled.counts[row]].tolist()

    def propose(self, rows, sampled, hidden):
        token, columns = self.last[rows.slots], []
        for _ in range(self.draft_tokens):
            token = torch.where(token < 0, -1, self.follower[rows.slots, token])
            columns.append(token)
        return torch.stack(columns, dim=1)


def verdict(speculator: type[Bigrams]) -> list[str]:
    class Contract(SpeculatorContract):
        vocab = VOCAB

        def make(self, draft_tokens: int, slots: int, device: str) -> Speculator:
            return speculator(draft_tokens, slots, device)

    return failures(Contract)


def test_a_good_speculator_passes() -> None:
    assert verdict(Bigrams) == []


class Mute(Bigrams):
    def propose(self, rows, sampled, hidden):
        return torch.full((len(rows.slots), self.draft_tokens), -1)


class Ragged(Bigrams):
    """As many columns as are needed now."""

    def propose(self, rows, sampled, hidden):
        drafts = super().propose(rows, sampled, hidden)
        return drafts[:, : int((drafts >= 0).any(dim=0).sum())]


class SmallIntegers(Bigrams):
    def propose(self, rows, sampled, hidden):
        return super().propose(rows, sampled, hidden).int()


class AllSlots(Bigrams):
    """A row for each slot there is."""

    def propose(self, rows, sampled, hidden):
        drafts = torch.full((len(self.last), self.draft_tokens), -1)
        drafts[rows.slots] = super().propose(rows, sampled, hidden)
        return drafts


class HasAHole(Bigrams):
    """Drafts from the second token on."""

    def propose(self, rows, sampled, hidden):
        drafts = super().propose(rows, sampled, hidden)
        drafts[:, 0] = -1
        return drafts


class BeyondTheVocabulary(Bigrams):
    def propose(self, rows, sampled, hidden):
        drafts = super().propose(rows, sampled, hidden)
        return torch.where(drafts == 23, VOCAB, drafts)


class LearnsTheBuffer(Bigrams):
    def valid(self, sampled, row):
        return sampled.tokens[row].clamp(0, VOCAB - 1).tolist()


class CountsDown(Bigrams):
    """Marks what it has learnt."""

    def verify(self, rows, sampled):
        super().verify(rows, sampled)
        sampled.counts.zero_()


class WantsAcceptance(Bigrams):
    def verify(self, rows, sampled):
        super().verify(rows, sampled)
        if rows.drafts.shape[1]:
            assert int(sampled.counts.max()) > 1, "my drafts are good"


class WantsFinite(Bigrams):
    def verify(self, rows, sampled):
        assert bool(sampled.finite.all())
        super().verify(rows, sampled)


class SomeOtherSpec(Bigrams):
    def kv_spec(self):
        return {"heads": 4}


@pytest.mark.parametrize(
    ("speculator", "test"),
    [
        (Mute, "test_drafts_are_ids_of_the_vocabulary_and_then_padding"),
        (Ragged, "test_there_is_a_row_of_drafts_for_each_request"),
        (SmallIntegers, "test_there_is_a_row_of_drafts_for_each_request"),
        (AllSlots, "test_there_is_a_row_of_drafts_for_each_request"),
        (HasAHole, "test_drafts_are_ids_of_the_vocabulary_and_then_padding"),
        (BeyondTheVocabulary, "test_drafts_are_ids_of_the_vocabulary_and_then_padding"),
        (LearnsTheBuffer, "test_tokens_beyond_the_count_do_not_matter"),
        (CountsDown, "test_what_it_is_told_stays_as_it_is"),
        (WantsAcceptance, "test_requests_come_and_go_in_any_order"),
        (WantsFinite, "test_a_request_that_was_not_finite_is_borne"),
        (SomeOtherSpec, "test_it_says_what_it_needs"),
    ],
)
def test_a_speculator_that_breaks_a_promise_is_rejected(
    speculator: type[Bigrams], test: str
) -> None:
    assert test in verdict(speculator)
