"""The standard sampler: every parameter of `SamplingParams`, drafts and grammar masks.

Where Triton runs, kernels choose the tokens, in steps that are recorded and in those that are not.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from camshaft.contracts.sampling import LogitsProcessor, RecordedChoice, Sampled, Sampler

from .allowed import AllowedIds
from .bad_words import BadWords
from .bias import LogitBias
from .blocks import first_maximum
from .choose import draw_rows
from .grammar_mask import GrammarMask
from .logprobs import keep_raw, report, report_tokens
from .min_tokens import MinTokens
from .params import Method, SlotParams
from .penalties import Penalties
from .recorded import Form, Forms
from .rows import row_slots
from .verify import verify

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import DeviceLogprobs, RowContext, SamplerSpec
    from camshaft.step import Admissions

    from .components import StandardSettings
    from .dense_penalties import DensePenalties


def runs_kernels(device: torch.device) -> bool:
    """Return whether Triton's kernels run there; torch calls ROCm's devices "cuda", too."""
    return device.type == "cuda" and find_spec("triton") is not None


class Standard(Sampler):
    """Chooses by the contract's order; never waits for the device."""

    def __init__(self, settings: StandardSettings, spec: SamplerSpec) -> None:
        device = torch.device(spec.device)
        self._kernels = _load(".kernels.launch") if runs_kernels(device) else None
        self._dense: DensePenalties | None = None
        if self._kernels is not None:
            self._dense = _load(".dense_penalties").DensePenalties(settings)
        penalties = self._dense or Penalties(settings)
        allowed, bias, words, minimum = (
            one(settings) for one in (AllowedIds, LogitBias, BadWords, MinTokens)
        )
        # in the contract's order
        own: list[LogitsProcessor] = [allowed, bias, penalties, words, minimum]
        for processor in own:
            processor.attach(spec)
        self._processors = [*own, *spec.processors]
        self._params = SlotParams(spec)
        self._mask = GrammarMask(device)
        # what an extra processor does is not known here
        self._records = not spec.processors
        special = (allowed, bias, words, minimum)
        self._forms = Forms(spec.slots, self._params, penalties, special)

    def admit(self, admissions: Admissions) -> None:
        """See `Sampler.admit`."""
        if not len(admissions):
            return
        self._params.admit(admissions)
        for processor in self._processors:
            processor.admit(admissions)
        self._forms.update(admissions.slots)

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
        tokens, finite = self._choose(logits, rows)
        if sound is not None:
            # Now minus infinity may also mean that every token is forbidden.
            finite &= sound
            tokens.masked_fill_(~finite, 0)
        logprobs = None if raw is None else report(raw, tokens, rows)
        sampled = Sampled(*verify(tokens, finite, rows), logprobs)
        self._params.produced(rows.slots, sampled.counts)
        for processor in self._processors:
            processor.observe(sampled, rows)
        if active:
            self._forms.update(rows.host_slots)
        return sampled

    def _choose(self, logits: torch.Tensor, rows: RowContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens int64 [Q], 0 where finite, bool [Q], is false."""
        if self._kernels is None:
            best, tokens = first_maximum(logits)
            finite = torch.isfinite(best)
            draw_rows(logits, best, tokens, rows, self._params)
            return tokens.masked_fill_(~finite, 0), finite
        method = Method(int(self._params.method[rows.host_slots].max(initial=Method.GREEDY)))
        offsets = rows.offsets if rows.drafts.shape[1] else None
        tables = self._params.tables
        tokens, finite = self._kernels.choose(
            method, logits, row_slots(rows), offsets, tables, advance=False
        )
        return tokens, finite

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
    ) -> DeviceLogprobs:
        """See `Sampler.logprobs`."""
        return report_tokens(logits, tokens, wanted, most)

    def recordable(self, slots: NDArray[np.int32]) -> Form | None:
        """See `Sampler.recordable`."""
        if not self._records:
            return None
        form = self._forms.of(slots)
        if self._kernels is None:  # torch draws in ways that ask the host
            return form if form is Form.GREEDY else None
        return None if form is Form.NONE else form

    def record(self, key: Hashable, logits: torch.Tensor, slots: torch.Tensor) -> RecordedChoice:
        """See `Sampler.record`."""
        assert isinstance(key, Form)
        if self._kernels is None:
            best, tokens = first_maximum(logits)
            finite = torch.isfinite(best)
            tokens.masked_fill_(~finite, 0)
            self._params.produced(slots, torch.ones_like(slots))
            return RecordedChoice(tokens, finite)
        dense = self._dense if key is Form.PENALISED else None
        if dense is not None:
            logits = dense.penalised(logits, slots)
        tables = self._params.tables
        tokens, finite = self._kernels.choose(key.method, logits, slots, None, tables, advance=True)
        if dense is not None:
            dense.count(tokens, slots)
        return RecordedChoice(tokens, finite)


def _load(name: str) -> Any:  # noqa: ANN401 - a module that imports Triton, where that is there
    return import_module(name, __package__)
