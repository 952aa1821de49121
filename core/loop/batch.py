"""A committed step: which requests are in it and what it does to their counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..step import int32
from .columns import NOBODY, Columns, Share

if TYPE_CHECKING:
    from ..contracts.cache import PageCopy, TableWrite
    from ..contracts.predictor import StepShape
    from ..step import Int32
    from .state import RequestState


_NOTHING = NOBODY.shape()


@dataclass(slots=True)
class Batch:
    """What the commit of a plan produced; becomes a `Step`.

    Attributes:
        step: Id of the step.
        shares: Requests that were placed one by one, in the plan's order.
        admitted: Requests that took a slot in this step.
        lacking: Requests that could not be admitted, because the cache lacks their modules.
        writes: Table writes, with the request they are for.
        copies: Page copies. Those of a dropped request stay: their targets are fenced, so nobody
            reads them.
        fresh: Pages that changed hands, as (request, group, page).
        columns: All requests, in step order, once arranged.
        shape: Of these.
        nano_batch: [B] number of each one's nano-batch; empty if they are one batch.
        launched_s: When it was launched.
        done_s: When its results were there, if that is known before they are read.
    """

    step: int
    shares: list[Share] = field(default_factory=list)
    admitted: list[RequestState] = field(default_factory=list)
    lacking: list[RequestState] = field(default_factory=list)
    writes: list[tuple[RequestState, TableWrite]] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    fresh: list[tuple[RequestState, int, int]] = field(default_factory=list)
    columns: Columns = NOBODY
    shape: StepShape = _NOTHING
    nano_batch: Int32 = field(default_factory=int32)
    launched_s: float = 0.0
    done_s: float | None = None

    def drop(self, state: RequestState) -> None:
        """Take a request out again; it was preempted after it was placed."""
        self.shares = [share for share in self.shares if share.state is not state]
        self.admitted = [one for one in self.admitted if one is not state]
        self.writes = [entry for entry in self.writes if entry[0] is not state]
        self.fresh = [entry for entry in self.fresh if entry[0] is not state]

    def take_back(self, state: RequestState, pages: int) -> None:
        """Note that a request keeps only so many pages: the others may be somebody else's now."""
        if self.fresh:
            gone = {
                (state, write.group, page)
                for owner, write in self.writes
                if owner is state
                for page in write.pages[max(0, pages - write.first) :]
            }
            self.fresh = [entry for entry in self.fresh if entry not in gone]

    def arrange(self, singles: Columns | None = None) -> None:
        """Put the step in order: decode-first, and the plan's order within each part.

        Args:
            singles: Requests with one token each that stand before the shares.
        """
        self.columns = Columns.of_shares(sorted(self.shares, key=lambda share: share.tokens != 1))
        if singles is not None:
            self.columns = singles.followed_by(self.columns)
        self.shape = self.columns.shape()
