"""Telling the cache which tokens are written: prompts at once, answers some tokens at a time.

A call for each page would cost more than all else that a decode step does on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .state import RequestState, Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..contracts.cache import KVManager, TableWrite
    from .table import SlotTable

    Int64 = NDArray[np.int64]

SMALL = 16
"""Pages of so many tokens are granted one by one, smaller ones some at a time."""

GRANTED, DECLARED = 32, 64
"""Tokens for which the cache is called once while requests decode: for pages, and to declare them.

What was granted ahead comes back when others need it, see `Committer`; what is not declared yet is
when a request loses its pages.
"""


def granted_at_once(page_tokens: int) -> int:
    """Return the tokens that requests get pages for at once while they decode."""
    return page_tokens if page_tokens >= SMALL else GRANTED // page_tokens * page_tokens


def declared_at_once(page_tokens: int) -> int:
    """Return the generated tokens that are declared at once."""
    return max(1, DECLARED // page_tokens) * page_tokens


class PendingWrite(NamedTuple):
    """A table write that goes with the next step, unless its request was re-admitted by then."""

    state: RequestState
    admission: int
    write: TableWrite


class Declarer:
    """Declares pages that steps fill.

    Attributes:
        writes: What the next step must tell the device of it.
    """

    def __init__(self, cache: KVManager, table: SlotTable, page_tokens: int) -> None:
        self.writes: list[PendingWrite] = []
        self._cache = cache
        self._table = table
        self._page_tokens = page_tokens
        self._grain = declared_at_once(page_tokens)

    def due(self, slots: Int64, written: Int64) -> NDArray[np.bool_]:
        """Return for which requests [B], with so many tokens written, it is time to declare."""
        due: NDArray[np.bool_] = written >= self._table.due[slots]
        return due

    def plan_next(self, state: RequestState) -> None:
        """Set when more of a request is declared than is `committed`."""
        size, grain, done = self._page_tokens, self._grain, state.committed
        state.due = done + size
        # what was known at admission is declared with its step: others wait for it
        if state.due > state.opened and grain > size:
            state.due = done - done % grain + grain

    def declare(self, state: RequestState, written: int, step: int) -> None:
        """Tell the cache that `step` writes the first `written` tokens, if that fills a page.

        Where stop strings are looked for, outputs wait for `declare_rest`.
        """
        whole, before = written - written % self._page_tokens, state.committed
        if whole <= before:
            return
        state.committed = whole
        self.plan_next(state)
        if state.request.params.stop:
            written = min(written, state.prompt_tokens)
            if written - before < self._page_tokens:
                return
        for write in self._cache.commit(state.uid, written, step).writes:
            self.writes.append(PendingWrite(state, state.admission, write))

    def declare_rest(self, state: RequestState, step: int, returned: int = 0) -> None:
        """Declare what is not declared of a running request that loses its pages now.

        Args:
            state: The request.
            step: The newest that was launched.
            returned: Output tokens that its client got, where stop strings are looked for: later
                ones are nobody's.
        """
        if state.status is not Status.RUNNING:
            return
        outputs = returned if state.request.params.stop else state.outputs
        known = min(state.prompt_tokens + outputs, state.computed, len(state.tokens) - 1)
        waited = state.request.params.stop and known > state.prompt_tokens
        if waited or known - state.committed >= self._page_tokens:
            self._cache.commit(state.uid, known, step)
