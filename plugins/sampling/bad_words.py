"""Token sequences that an output must not contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.sampling import LogitsProcessor

from .rows import SlotLists
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.component import Settings
    from camshaft.contracts.sampling import RowContext, Sampled, SamplerSpec
    from camshaft.step import Admissions

NOTHING = -1
"""In a history: before the first output."""

ANYTHING = -2
"""In a word: matches whatever stands there."""


class BadWords(LogitsProcessor):
    """Forbids the last id of a word where the ids before it stand at the end of the output.

    W is the longest word, less one: that much of the output's end is kept for each slot. Words are
    stored as their first ids, right-aligned in W places, and their last id.
    """

    def __init__(self, settings: Settings) -> None:
        del settings  # has none

    def attach(self, spec: SamplerSpec) -> None:
        """See `LogitsProcessor.attach`."""
        self._slots = spec.slots
        self._device = torch.device(spec.device)
        self._words: dict[int, list[NDArray[np.int32]]] = {}
        self._lists = SlotLists(spec.slots, self._device)
        self._end = torch.zeros((spec.slots, 0), dtype=torch.int64, device=self._device)

    def admit(self, admissions: Admissions) -> None:
        """See `LogitsProcessor.admit`."""
        slots = admissions.slots.tolist()
        for place, slot in enumerate(slots):
            self._words[slot] = _split(admissions.bad_words[place])
        lengths = [len(word) for slot in slots for word in self._words[slot]]
        self._widen(max(lengths, default=1) - 1)
        for slot in slots:
            self._put(slot)
        places = np.flatnonzero(self._lists.present[admissions.slots])
        width = self._end.shape[1]
        if not len(places) or not width:
            return
        ends = np.full((len(places), width), NOTHING, dtype=np.int64)
        for row, place in enumerate(places.tolist()):
            outputs = admissions.outputs[place][-width:]
            ends[row, width - len(outputs) :] = outputs
        where = upload(admissions.slots.astype(np.int64)[places], self._device)
        self._end.index_copy_(0, where, upload(ends, self._device))

    def wanted(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which of `slots` have bad words."""
        return self._lists.present[slots]

    def active(self, rows: RowContext) -> bool:
        """See `LogitsProcessor.active`."""
        return self._lists.active(rows)

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """See `LogitsProcessor.apply`."""
        index, firsts, last = self._lists.entries(rows)
        ends = self._after(rows.drafts, rows.offsets, rows.slots, rows.row_request)[index]
        meets = ((ends == firsts) | (firsts == ANYTHING)).all(dim=1)
        ban = torch.zeros_like(meets, dtype=logits.dtype).masked_fill_(meets, -torch.inf)
        logits.index_put_((index, last), ban, accumulate=True)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        """See `LogitsProcessor.observe`."""
        if not self._end.shape[1] or not self.active(rows):
            return
        requests = torch.arange(len(rows.slots), device=self._device)
        ends = self._after(sampled.tokens, sampled.counts, rows.slots, requests)
        self._end.index_copy_(0, rows.slots, ends)

    def _after(
        self,
        tokens: torch.Tensor,
        counts: torch.Tensor,
        slots: torch.Tensor,
        requests: torch.Tensor,
    ) -> torch.Tensor:
        """Return the ends [N, W] of the outputs after the first `counts` [N] of `tokens` [S, K].

        `requests` [N] says whose each end is.
        """
        # columns: [0 ... W) end of the output   [W ... W + K) new tokens; the window moves by count
        both = torch.cat((self._end[slots], tokens), dim=1)[requests]
        window = torch.arange(self._end.shape[1], device=self._device)
        return both.gather(1, counts.unsqueeze(1) + window)

    def _widen(self, width: int) -> None:
        """Make room for words of `width` + 1 ids."""
        more = width - self._end.shape[1]
        if more <= 0:
            return
        unknown = torch.full((self._slots, more), NOTHING, dtype=torch.int64, device=self._device)
        self._end = torch.cat((unknown, self._end), dim=1)
        for slot in np.flatnonzero(self._lists.present).tolist():
            self._put(slot)

    def _put(self, slot: int) -> None:
        words, width = self._words[slot], self._end.shape[1]
        firsts = np.full((len(words), width), ANYTHING, dtype=np.int64)
        for row, word in enumerate(words):
            firsts[row, width - len(word) + 1 :] = word[:-1]
        self._lists.put(slot, firsts, np.array([word[-1] for word in words], dtype=np.int64))


def _split(packed: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Return the words of a list in which each is preceded by its length."""
    words, at = [], 0
    while at < len(packed):
        end = at + 1 + int(packed[at])
        words.append(packed[at + 1 : end].copy())
        at = end
    return [word for word in words if len(word)]
