"""Running requests that have one pending token each, as a sequence that costs nothing a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from .state import RequestState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]


class Singles(Sequence[RequestState]):
    """What `View.one_pending` returns; a plan that holds it or a slice of it needs no more checks.

    Attributes:
        states: The requests.
        slots: [B] theirs.
        uids: [B] theirs.
        turn: Of the engine. What was true in one turn may not be in the next.
    """

    __slots__ = ("slots", "states", "turn", "uids")

    def __init__(self, states: list[RequestState], slots: Int64, uids: Int64, turn: int) -> None:
        self.states = states
        self.slots = slots
        self.uids = uids
        self.turn = turn

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self.states)

    @overload
    def __getitem__(self, place: int) -> RequestState: ...

    @overload
    def __getitem__(self, place: slice) -> Singles: ...

    def __getitem__(self, place: int | slice) -> RequestState | Singles:
        if isinstance(place, slice):
            return Singles(self.states[place], self.slots[place], self.uids[place], self.turn)
        return self.states[place]

    def only(self, keep: NDArray[np.bool_]) -> Singles:
        """Return those for which `keep` [B] is true."""
        if np.count_nonzero(keep) == len(keep):  # a third of what `all` takes
            return self
        states = [self.states[row] for row in keep.nonzero()[0].tolist()]
        return Singles(states, self.slots[keep], self.uids[keep], self.turn)
