"""The standard sampler: every parameter of `SamplingParams`, drafts and grammar masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.sampling import LogitsProcessor, Sampled, Sampler

from .allowed import AllowedIds
from .bad_words import BadWords
from .bias import LogitBias
from .blocks import first_maximum
from .choose import draw_rows
from .grammar_mask import GrammarMask
from .logprobs import keep_raw, report
from .min_tokens import MinTokens
from .params import SlotParams
from .penalties import Penalties
from .verify import verify

if TYPE_CHECKING:
    from camshaft.contracts.sampling import RowContext, SamplerSpec
    from camshaft.step import Admissions

    from .components import StandardSettings

BUILT_IN = (AllowedIds, LogitBias, Penalties, BadWords, MinTokens)
"""In the contract's order."""


class Standard(Sampler):
    """Chooses by the contract's order; never waits for the device."""

    def __init__(self, settings: StandardSettings, spec: SamplerSpec) -> None:
        own: list[LogitsProcessor] = [processor(settings) for processor in BUILT_IN]
        for processor in own:
            processor.attach(spec)
        self._processors = [*own, *spec.processors]
        self._params = SlotParams(spec)
        self._mask = GrammarMask(torch.device(spec.device))

    def admit(self, admissions: Admissions) -> None:
        """See `Sampler.admit`."""
        if not len(admissions):
            return
        self._params.admit(admissions)
        for processor in self._processors:
            processor.admit(admissions)

    def sample(self, logits: torch.Tensor, rows: RowContext, masks: torch.Tensor | None) -> Sampled:
        """See `Sampler.sample`."""
        active = [processor for processor in self._processors if processor.active(rows)]
        changes = bool(active) or masks is not None
        alternatives = self._params.logprobs[rows.host_slots]
        raw = keep_raw(logits, rows, alternatives, copy=changes)
        # The maximum of a row tells: it is NaN if anything is, minus infinity if all is.
        sound = torch.isfinite(logits.amax(dim=1)) if changes else None
        if masks is not None:
            self._mask.apply(logits, masks)
        for processor in active:
            processor.apply(logits, rows)
        best, tokens = first_maximum(logits)
        # Now minus infinity may also mean that every token is forbidden.
        finite = torch.isfinite(best) if sound is None else torch.isfinite(best) & sound
        draw_rows(logits, best, tokens, rows, self._params)
        tokens.masked_fill_(~finite, 0)
        logprobs = None if raw is None else report(raw, tokens, rows)
        sampled = Sampled(*verify(tokens, finite, rows), logprobs)
        self._params.produced(rows.slots, sampled.counts)
        for processor in self._processors:
            processor.observe(sampled, rows)
        return sampled
