"""A committed step: which requests are in it and what it does to their counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..contracts.scheduler import Rows

if TYPE_CHECKING:
    from ..contracts.cache import PageCopy, TableWrite
    from ..contracts.predictor import StepShape
    from .state import RequestState


_NONE = Rows.NONE


class Share(NamedTuple):
    """One request's share of a committed step.

    Attributes:
        state: The request.
        admission: Its admission number then; counts of an older one are void.
        start: Its computed tokens before the step.
        tokens: Tokens in the step, drafts included.
        drafts: How many of them are drafts.
        rows: Resolved, never `AUTO`.
    """

    state: RequestState
    admission: int
    start: int
    tokens: int
    drafts: int
    rows: Rows

    @property
    def samples(self) -> bool:
        """Whether the step chooses tokens for it."""
        return self.rows is not _NONE


@dataclass(slots=True)
class Batch:
    """What the commit of a plan produced; becomes a `Step`.

    Attributes:
        step: Id of the step.
        shares: In step order, once sorted.
        admitted: Requests that took a slot in this step.
        writes: Table writes, with the request they are for.
        copies: Page copies. Those of a dropped request stay: their targets are fenced, so nobody
            reads them.
        fresh: Pages that changed hands, as (request, group, page).
        launched_s: When it was launched.
        sampled: Whether its sample launch happened.
        shape: For predictors.
    """

    step: int
    shares: list[Share] = field(default_factory=list)
    admitted: list[RequestState] = field(default_factory=list)
    writes: list[tuple[RequestState, TableWrite]] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    fresh: list[tuple[RequestState, int, int]] = field(default_factory=list)
    launched_s: float = 0.0
    sampled: bool = False
    shape: StepShape | None = None

    def drop(self, state: RequestState) -> None:
        """Take a request out again; it was preempted after it was placed."""
        self.shares = [share for share in self.shares if share.state is not state]
        self.admitted = [one for one in self.admitted if one is not state]
        self.writes = [entry for entry in self.writes if entry[0] is not state]
        self.fresh = [entry for entry in self.fresh if entry[0] is not state]

    def order(self) -> None:
        """Sort decode-first, keeping the plan's order within each part."""
        self.shares.sort(key=lambda share: share.tokens != 1)
