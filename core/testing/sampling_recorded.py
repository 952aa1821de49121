"""Tests of the choice that a sampler makes in recorded steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ..contracts.sampling import SamplerSpec
from .sampling_making import VOCAB, SamplerMaking, menu
from .sampling_play import Ask, Play, params

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contracts.sampling import Sampler

PADDING_ROWS = 2


class RecordedPlay(Play):
    """Makes each step as a recorded graph would, where the sampler says that one serves it.

    Attributes:
        recorded: How many steps were so.
    """

    def __init__(self, sampler: Sampler, vocab: int, padding: int) -> None:
        super().__init__(sampler, vocab)
        self.recorded = 0
        self._padding = padding

    def step(self, slots: Sequence[int], drafts: Mapping[int, Sequence[int]] | None = None) -> None:
        """See `Play.step`. Rows of padding go with the others."""
        key = self.sampler.recordable(np.array(slots, dtype=np.int32))
        if key is None:
            super().step(slots, drafts)
            return
        rows = [self._logits(slot, []) for slot in slots] + [torch.zeros(self.vocab)] * PADDING_ROWS
        padded = torch.tensor([*slots, *[self._padding] * PADDING_ROWS])
        logits = torch.stack(rows)
        before = logits.clone()
        chosen = self.sampler.record(key, logits, padded)
        assert torch.equal(logits, before)
        assert chosen.tokens.shape == chosen.finite.shape == padded.shape
        assert (chosen.tokens.dtype, chosen.finite.dtype) == (torch.int64, torch.bool)
        for slot, token in zip(slots, chosen.tokens.tolist()[:-PADDING_ROWS], strict=True):
            self.outputs[slot].append(token)
        self.recorded += 1


class RecordedTests(SamplerMaking):
    """Part of `SamplerContract`; skipped for samplers that cannot be recorded."""

    def recording(self, *asks: Ask) -> RecordedPlay:
        """Return a play of new requests."""
        padding = 1 + max(ask.slot for ask in asks)
        sampler = self.make(SamplerSpec(VOCAB, 1 + padding, "cpu"))
        return RecordedPlay(sampler, VOCAB, padding).start(*asks)  # type: ignore[return-value]

    def recorded(self, *asks: Ask, steps: int = 8) -> RecordedPlay:
        """Run requests, recorded; skip if no step was."""
        play = self.recording(*asks)
        play.run([ask.slot for ask in asks], steps)
        if not play.recorded:
            pytest.skip("it records no such step")
        return play

    @pytest.mark.parametrize("ask", menu(), ids=lambda ask: str(ask.slot))
    def test_a_recorded_choice_is_the_one_that_sample_makes(self, ask: Ask) -> None:
        """For each sort of request alone; steps of both kinds follow each other."""
        assert self.recorded(ask).outputs == self.play([ask], [ask.slot]).outputs

    def test_requests_of_different_sorts_share_a_recorded_step(self) -> None:
        """Those that can be recorded at all."""
        able = [ask for ask in menu() if self._starts_recorded(ask)]
        if not able:
            pytest.skip("it records no such step")
        play = self.recorded(*able)
        assert play.recorded == 8
        assert play.outputs == self.play(able, [ask.slot for ask in able]).outputs

    def test_recorded_rows_that_are_not_finite_are_reported(self) -> None:
        """They get token 0, and their neighbours what they would get alone."""
        asks = [Ask(slot, params(0.0)) for slot in range(3)]
        play = self.recording(*asks)
        key = play.sampler.recordable(np.arange(3, dtype=np.int32))
        if key is None:
            pytest.skip("it records no such step")
        logits = torch.tensor([[0.0, torch.nan], [0.0, 1.0], [-torch.inf, -torch.inf]])
        logits = torch.nn.functional.pad(logits, (0, VOCAB - 2), value=-torch.inf)
        chosen = play.sampler.record(key, logits, torch.arange(3))
        assert chosen.finite.tolist() == [False, True, False]
        assert chosen.tokens.tolist() == [0, 1, 0]

    def _starts_recorded(self, ask: Ask) -> bool:
        slots = np.array([ask.slot], dtype=np.int32)
        return self.recording(ask).sampler.recordable(slots) is not None
