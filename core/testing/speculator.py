"""The contract of speculators, as tests to inherit. Needs torch."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from ..contracts.attention import AttentionSpec
from ..contracts.sampling import Sampled
from .sampling_play import row_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.sampling import RowContext
    from ..contracts.speculator import Speculator


class SpeculatorContract:
    """Subclass it, define `make`, and run pytest.

    That speculation does not change greedy output is the sampler's promise, whatever is drafted;
    here a speculator must only draft what can be verified, and bear every outcome of it.

    Attributes:
        vocab: Ids are below it.
        hidden_size: Of the hidden states that it is given, if it wants any.
        device: Torch's name.
    """

    vocab: int = 64
    hidden_size: int = 16
    device: str = "cpu"

    def make(self, draft_tokens: int, slots: int, device: str) -> Speculator:
        """Return the speculator under test, always with the same weights and seed."""
        raise NotImplementedError

    def play(self, draft_tokens: int, slots: int = 4, garbage: int = 0) -> Play:
        """Return requests that run with a new speculator."""
        return Play(self, self.make(draft_tokens, slots, self.device), draft_tokens, garbage)

    def test_it_says_what_it_needs(self) -> None:
        """Before anything runs: layers, host tokens, a KV group of its own."""
        speculator = self.make(2, 4, self.device)
        assert isinstance(speculator.needs_host_tokens, bool)
        assert all(layer >= 0 for layer in speculator.hidden_layers)
        spec = speculator.kv_spec()
        assert spec is None or isinstance(spec, AttentionSpec)

    @pytest.mark.parametrize("draft_tokens", [1, 4])
    @pytest.mark.parametrize("requests", [1, 3, 4])
    def test_there_is_a_row_of_drafts_for_each_request(
        self, draft_tokens: int, requests: int
    ) -> None:
        """int64 [S, K], on the device, for however many requests the step has."""
        play = self.play(draft_tokens)
        for _ in range(6):
            drafts = play.step(range(requests))
            assert drafts.shape == (requests, draft_tokens)
            assert drafts.dtype is torch.int64
            assert drafts.device.type == torch.device(self.device).type

    def test_drafts_are_ids_of_the_vocabulary_and_then_padding(self) -> None:
        """After a first -1 there is nothing else: the verifier stops there."""
        play, seen = self.play(4), 0
        for _ in range(40):
            for row in play.step(range(4)).tolist():
                kept = [token for token in row if token != -1]
                assert row == kept + [-1] * (4 - len(kept))
                assert all(0 <= token < self.vocab for token in kept)
                seen += len(kept)
        assert seen, "nothing was drafted in 40 steps of text that repeats itself"

    def test_requests_come_and_go_in_any_order(self) -> None:
        """A step holds some of the slots; all, some or none of their drafts are accepted."""
        play, chance = self.play(3), random.Random(0)
        for _ in range(60):
            slots = chance.sample(range(4), chance.randint(1, 4))
            assert play.step(slots, accept=chance.randint(0, 3)).shape == (len(slots), 3)

    def test_tokens_beyond_the_count_do_not_matter(self) -> None:
        """They are what a sampler left in its buffer, ids or not."""
        runs = []
        for garbage in (0, -7, 10**9):
            play, chance = self.play(3, garbage=garbage), random.Random(1)
            runs.append([play.step(range(4), chance.randint(0, 3)).tolist() for _ in range(30)])
        assert runs[0] == runs[1] == runs[2]

    def test_a_request_that_was_not_finite_is_borne(self) -> None:
        """It got token 0, and ends; its neighbours go on."""
        play = self.play(3)
        for finite in ([True] * 4, [True, False, True, False], [False] * 4):
            drafts = play.step(range(4), finite=finite)
            assert drafts.shape == (4, 3)
        assert play.step([0, 2]).shape == (2, 3)

    def test_what_it_is_told_stays_as_it_is(self) -> None:
        """Tokens are on their way to the host, and rows are the step's."""
        play = self.play(3)
        for _ in range(20):
            play.step(range(4))
            assert play.unchanged(), "it wrote to what it was given"


class Play:
    """Requests that repeat a short text each, with one speculator, as the executor calls it."""

    def __init__(
        self, contract: SpeculatorContract, speculator: Speculator, drafts: int, garbage: int
    ) -> None:
        self.contract, self.speculator, self.draft_tokens = contract, speculator, drafts
        self.garbage = garbage
        self.places = [0, 1, 2, 3]
        self.drafts: dict[int, list[int]] = {}
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []

    def step(
        self, slots: Sequence[int], accept: int = 4, finite: Sequence[bool] | None = None
    ) -> torch.Tensor:
        """Run a step of these slots; return the drafts for the next one.

        Args:
            slots: In step order.
            accept: Most drafts of a request that are accepted; right ones, that is.
            finite: By request.
        """
        own = [self.drafts.get(slot, []) for slot in slots]
        most = max(len(one) for one in own)
        rows = row_context(slots, own, max_drafts=most, device=self.contract.device)
        sampled = self._sampled(slots, own, most, accept, list(finite or [True] * len(slots)))
        hidden = {
            layer: torch.ones(len(rows.row_request), self.contract.hidden_size).to(
                rows.slots.device
            )
            for layer in self.speculator.hidden_layers
        }
        self._after = _tensors(rows, sampled, hidden)
        self._before = [one.clone() for one in self._after]
        self.speculator.verify(rows, sampled)
        drafts = self.speculator.propose(rows, sampled, hidden)
        for slot, row in zip(slots, drafts.tolist(), strict=True):
            self.drafts[slot] = row[: row.index(-1)] if -1 in row else row
        return drafts

    def unchanged(self) -> bool:
        """Return whether the newest step's tensors are what they were."""
        return all(map(torch.equal, self._before, self._after))

    def _sampled(
        self,
        slots: Sequence[int],
        drafts: list[list[int]],
        most: int,
        accept: int,
        finite: list[bool],
    ) -> Sampled:
        tokens = torch.full((len(slots), 1 + most), self.garbage, dtype=torch.int64)
        counts = torch.ones(len(slots), dtype=torch.int64)
        for row, (slot, own) in enumerate(zip(slots, drafts, strict=True)):
            wanted = [self._text(slot, self.places[slot] + step) for step in range(1 + len(own))]
            right = 0
            while right < min(accept, len(own)) and own[right] == wanted[right]:
                right += 1
            chosen = wanted[: 1 + right] if finite[row] else [0]
            tokens[row, : len(chosen)] = torch.tensor(chosen)
            counts[row] = len(chosen)
            self.places[slot] += len(chosen)
        device = self.contract.device
        return Sampled(tokens.to(device), counts.to(device), torch.tensor(finite).to(device), None)

    def _text(self, slot: int, place: int) -> int:
        """Return token `place` of the text of a slot: a phrase of 3 to 6 tokens, repeated."""
        return (7 * slot + place % (3 + slot)) % self.contract.vocab


def _tensors(
    rows: RowContext, sampled: Sampled, hidden: dict[int, torch.Tensor]
) -> list[torch.Tensor]:
    of_rows = [rows.slots, rows.row_start, rows.row_request, rows.offsets, rows.drafts]
    return [*of_rows, sampled.tokens, sampled.counts, sampled.finite, *hidden.values()]
