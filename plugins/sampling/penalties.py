"""Presence, frequency and repetition penalties.

Sources: the presence and frequency penalties of OpenAI's API reference, on generated tokens only;
Keskar et al., "CTRL", 2019, section 4.1, for repetition, on prompt and generated tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.sampling import LogitsProcessor

from .rows import SlotLists, row_slots, rows_where
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.component import Settings
    from camshaft.contracts.sampling import RowContext, Sampled, SamplerSpec
    from camshaft.step import Admissions

IN_PROMPT = 1
ONE_OUTPUT = 2
"""A cell counts a token's outputs in twos; its lowest bit says that the prompt holds the token."""

COLUMNS = 64
"""Columns of the log of outputs at first; doubled when they do not do."""


class Penalties(LogitsProcessor):
    """Changes only the logits of tokens that a request has seen: thousands, not the vocabulary.

    Kept for each slot, from the first request on that asks:
        cells: int32 [R, V], how often each token was seen.
        prompt ids: each once, for repetition penalties.
        log of outputs: int32 [R, L], ids. Any id may stand there, also a rejected draft: what is
            done to a logit depends on its cell alone, and nothing is done where that is 0. So the
            host need not know how many drafts were accepted.
    """

    def __init__(self, settings: Settings) -> None:
        del settings  # has none

    def attach(self, spec: SamplerSpec) -> None:
        """See `LogitsProcessor.attach`."""
        self._vocab = spec.vocab
        self._device = torch.device(spec.device)
        self._wanted = np.zeros(spec.slots, dtype=np.bool_)
        self._logged = np.zeros(spec.slots, dtype=np.int64)
        # presence, frequency, repetition: without effect, until a request wants one
        neutral = np.repeat(np.array([[0], [0], [1]], dtype=np.float32), spec.slots, axis=1)
        self._strength = upload(neutral, self._device)
        self._prompts = SlotLists(spec.slots, self._device)
        self._cells: torch.Tensor | None = None
        self._log = torch.zeros((spec.slots, 0), dtype=torch.int32, device=self._device)

    def admit(self, admissions: Admissions) -> None:
        """See `LogitsProcessor.admit`."""
        slots = admissions.slots.astype(np.int64)
        repeats = admissions.repetition != 1
        wanted = (admissions.presence != 0) | (admissions.frequency != 0) | repeats
        self._wanted[slots] = wanted
        self._logged[slots] = 0
        for place, slot in enumerate(slots.tolist()):
            prompt = admissions.prompt[place][: None if repeats[place] else 0]
            self._prompts.put(slot, np.unique(prompt).astype(np.int64))
        places = np.flatnonzero(wanted)
        if not len(places) and self._cells is None:
            return
        strength = np.stack([admissions.presence, admissions.frequency, admissions.repetition])
        where = upload(slots, self._device)
        self._strength.index_copy_(1, where, upload(strength, self._device))
        if len(places):
            self._remember(slots[places], [admissions.outputs[place] for place in places.tolist()])

    def wanted(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `slots` have a penalty."""
        return self._wanted[slots]

    def active(self, rows: RowContext) -> bool:
        """See `LogitsProcessor.active`."""
        return bool(self._wanted[rows.host_slots].any())

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        assert self._cells is not None
        index, ids = self._seen(rows)
        slots = row_slots(rows)[index]
        cells = self._cells[slots, ids]
        if rows.drafts.shape[1]:
            # the drafts before a row count as outputs
            before = torch.arange(rows.drafts.shape[1], device=ids.device) < rows.offsets[:, None]
            drafts = rows.drafts[rows.row_request].masked_fill(~before, -1)
            cells = cells + ONE_OUTPUT * (drafts[index] == ids[:, None]).sum(dim=1)
        presence, frequency, repetition = self._strength[:, slots]
        old = logits[index, ids]
        new = torch.where(old > 0, old / repetition, old * repetition)
        new = torch.where(cells > 0, new, old)
        outputs = cells >> 1
        new = new - frequency * outputs - presence * (outputs > 0)
        # an id that stands there twice gets the same number twice
        logits.index_put_((index, ids), new)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        """See `LogitsProcessor.observe`."""
        chosen = self._wanted[rows.host_slots]
        if not chosen.any():
            return
        assert self._cells is not None
        index = upload(np.flatnonzero(chosen), self._device)
        slots, tokens = rows.slots[index][:, None], sampled.tokens[index]
        place = torch.arange(tokens.shape[1], device=self._device)
        valid = place < sampled.counts[index][:, None]
        twos = (valid * ONE_OUTPUT).to(torch.int32)
        self._cells.index_put_((slots, tokens), twos, accumulate=True)
        own = rows.host_slots[chosen]
        self._widen(int(self._logged[own].max()) + tokens.shape[1])
        at = upload(self._logged[own], self._device)[:, None] + place
        self._log.index_put_((slots, at), tokens.to(torch.int32))
        self._logged[own] += np.diff(rows.host_rows)[chosen]

    def _seen(self, rows: RowContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows and ids, int64 [E] each, of all that these rows may have seen."""
        owners = rows_where(self._wanted[rows.host_slots], rows)
        which = upload(owners, self._device)
        logged = int(self._logged[rows.host_slots].max())
        log = self._log[:, :logged].index_select(0, row_slots(rows)[which]).to(torch.int64)
        lists = torch.cat((log, rows.drafts[rows.row_request[which]].clamp(min=0)), dim=1)
        index, ids = which.repeat_interleave(lists.shape[1]), lists.flatten()
        if not self._prompts.active(rows):
            return index, ids
        prompt_index, prompt_ids = self._prompts.entries(rows)
        return torch.cat((index, prompt_index)), torch.cat((ids, prompt_ids))

    def _remember(self, slots: NDArray[np.int64], outputs: list[NDArray[np.int32]]) -> None:
        """Set cells and logs of `slots`, whose prompts are in their lists."""
        if self._cells is None:
            shape = (len(self._wanted), self._vocab)
            self._cells = torch.zeros(shape, dtype=torch.int32, device=self._device)
        self._cells.index_fill_(0, upload(slots, self._device), 0)
        written = [upload(ids.astype(np.int64), self._device) for ids in outputs]
        for slot, ids in zip(slots.tolist(), written, strict=True):
            prompt = self._prompts.columns(slot)
            if prompt:
                self._cells[slot].index_fill_(0, prompt[0], IN_PROMPT)
            if len(ids):
                twos = torch.full_like(ids, ONE_OUTPUT, dtype=torch.int32)
                self._cells[slot].index_add_(0, ids, twos)
        self._start_logs(slots, written)

    def _start_logs(self, slots: NDArray[np.int64], outputs: list[torch.Tensor]) -> None:
        self._logged[slots] = [len(one) for one in outputs]
        self._widen(int(self._logged[slots].max()))
        for slot, ids in zip(slots.tolist(), outputs, strict=True):
            self._log[slot, : len(ids)] = ids

    def _widen(self, columns: int) -> None:
        """Make room in the log."""
        have = self._log.shape[1]
        if columns > have:
            more = max(columns - have, have, COLUMNS)
            self._log = torch.nn.functional.pad(self._log, (0, more))
