"""The requests of a step as columns, in step order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..contracts.predictor import StepShape
from ..contracts.scheduler import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .singles import Singles
    from .state import RequestState
    from .table import SlotTable

    Int64 = NDArray[np.int64]
    Bool = NDArray[np.bool_]

_LAST, _NONE = int(Rows.LAST), int(Rows.NONE)


class Share(NamedTuple):
    """One request's share of a step.

    Attributes:
        state: The request.
        start: Its computed tokens before the step.
        tokens: Tokens in the step, drafts included.
        drafts: How many of them are drafts.
        rows: Resolved, never `AUTO`.
    """

    state: RequestState
    start: int
    tokens: int
    drafts: int
    rows: Rows

    @property
    def samples(self) -> bool:
        """Whether the step chooses tokens for it."""
        return self.rows is not Rows.NONE

    @property
    def on_device(self) -> bool:
        """Whether its only token is the newest one of its slot."""
        state = self.state
        return self.tokens == 1 and bool(state.on_device) and state.known == self.start + 1


class Columns:
    """B requests; all arrays are [B].

    Attributes:
        states: The requests.
        numbers: int64 [7, B], the first seven of these:
        slots: Of the requests.
        uids: Of the requests; a slot in which another is found has been given up since.
        start: Computed tokens before the step.
        tokens: Tokens in the step, drafts included.
        drafts: How many of them are drafts.
        rows: `Rows` values, never `AUTO`.
        on_device: Whether a request's only token is the newest one of its slot.
        written: Computed tokens after the step.
        samples: Whether the step chooses tokens for a request.
    """

    def __init__(self, states: list[RequestState], numbers: Int64) -> None:
        self.states = states
        self.numbers = numbers
        columns: list[Int64] = list(numbers)
        self.slots, self.uids, self.start, self.tokens = columns[:4]
        self.drafts, self.rows, on_device = columns[4:]
        self.on_device: Bool = on_device != 0
        self.written: Int64 = self.start + self.tokens
        self.samples: Bool = self.rows != _NONE

    @classmethod
    def of_shares(cls, shares: Sequence[Share]) -> Columns:
        """Return shares in their order."""
        if not shares:
            return NOBODY
        numbers = [
            (
                one.state.slot,
                one.state.uid,
                one.start,
                one.tokens,
                one.drafts,
                one.rows,
                one.on_device,
            )
            for one in shares
        ]
        return cls([share.state for share in shares], np.array(numbers, dtype=np.int64).T)

    @classmethod
    def of_singles(cls, singles: Singles, table: SlotTable) -> Columns:
        """Return requests of a table that compute one token each."""
        slots = singles.slots
        start, known = table.computed[slots], table.known[slots]
        numbers = np.empty((7, len(slots)), dtype=np.int64)
        numbers[0], numbers[1], numbers[2] = slots, singles.uids, start
        numbers[3], numbers[4] = 1, 0
        numbers[5] = np.where(start + 1 >= known, _LAST, _NONE)
        numbers[6] = (start + 1 == known) & (table.on_device[slots] != 0)
        return cls(singles.states, numbers)

    def followed_by(self, other: Columns) -> Columns:
        """Return these requests and then the others."""
        if not self.states or not other.states:
            return self if self.states else other
        numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        return Columns([*self.states, *other.states], numbers)

    def __len__(self) -> int:
        return len(self.states)

    def shape(self) -> StepShape:
        """Return what drives the time of the step."""
        count, tokens = len(self), int(self.tokens.sum())
        return StepShape(
            requests=count,
            tokens=tokens,
            # nobody has none: mostly the sum tells that all have one
            decode_tokens=count if tokens == count else int(np.count_nonzero(self.tokens == 1)),
            context=int(self.written.sum()),
            logits_rows=int(np.count_nonzero(self.samples)),
        )


NOBODY = Columns([], np.zeros((7, 0), dtype=np.int64))
