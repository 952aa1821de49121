"""How the tests of samplers make one and let it choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..contracts.sampling import LogitsProcessor, SamplerSpec
from .sampling_play import Ask, Play, admit, params, row_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.sampling import Sampled, Sampler
    from ..request import SamplingParams

VOCAB = 50  # no multiple of 32: the last word of a mask is not full

MENU = (
    params(temperature=0.0),
    params(),
    params(temperature=0.7, top_k=5),
    params(temperature=1.3, top_p=0.8),
    params(min_p=0.1),
    params(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    params(repetition_penalty=1.8, top_k=20),
    params(logit_bias={3: 2.0, 7: -4.0}),
    params(temperature=0.9, bad_words=((1,), (2, 3), (4, 5, 6))),
    params(min_tokens=4),
    params(allowed_token_ids=(2, 3, 5, 7, 11)),
    params(temperature=1.1, top_k=9, top_p=0.9, min_p=0.02, frequency_penalty=0.3, logprobs=3),
)
"""Parameters of every sort, one request each."""


def menu() -> list[Ask]:
    """Return a request for each entry of `MENU`, in slots 0 and up."""
    return [
        Ask(slot, one, seed=100 + slot, prompt=(1, 2, 2 + slot), stops=(8, 9))
        for slot, one in enumerate(MENU)
    ]


class SamplerMaking:
    """What the tests share. `make` is for the author of a sampler to write.

    Attributes:
        draws: Of the test of distributions, for each parameter. Fewer are for slow samplers.
    """

    draws = 20_000

    def make(self, spec: SamplerSpec) -> Sampler:
        """Return a new sampler."""
        raise NotImplementedError

    def sampler(self, slots: int = len(MENU), vocab: int = VOCAB, max_drafts: int = 0) -> Sampler:
        """Return a new sampler on the CPU without extra processors."""
        return self.make(SamplerSpec(vocab, slots, "cpu", max_drafts))

    def choose(
        self,
        logits: Sequence[Sequence[float]],
        *asks: Ask,
        masks: torch.Tensor | None = None,
        processors: tuple[LogitsProcessor, ...] = (),
    ) -> Sampled:
        """Return what a new sampler chooses from `logits`, a row for each request."""
        spec = SamplerSpec(len(logits[0]), 1 + len(asks), "cpu", 0, processors)
        for processor in processors:
            processor.attach(spec)
        sampler = self.make(spec)
        sampler.admit(admit(*asks))
        rows = row_context([ask.slot for ask in asks])
        return sampler.sample(torch.tensor(logits, dtype=torch.float32), rows, masks)

    def ids(self, logits: Sequence[float], one: SamplingParams, **ask: tuple[int, ...]) -> int:
        """Return the token chosen from `logits` [V] for a request alone."""
        return int(self.choose([logits], Ask(0, one, **ask)).tokens[0, 0])  # type: ignore[arg-type]

    def play(self, asks: Sequence[Ask], order: Sequence[int], steps: int = 8) -> Play:
        """Run requests together."""
        play = Play(self.sampler(), VOCAB).start(*asks)
        play.run(order, steps)
        return play
