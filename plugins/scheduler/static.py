"""Static batching: a batch runs to the end of its longest answer before the next one starts.

The baseline that papers on batching start from: Yu et al., "Orca", OSDI 2022, section 2, call it
request-level scheduling. Answers are streamed all the same, and nothing is padded.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Scheduler

from .batch_run import run_batch
from .victim import latest

if TYPE_CHECKING:
    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import Plan, RequestView, SchedulerLimits, View

    from .components import StaticSettings


class Static(Scheduler):
    """Takes so many waiting requests, or fewer if no more wait, whenever nobody runs."""

    def __init__(self, settings: StaticSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.limits = limits
        self.members: dict[int, RequestView] = {}

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        if not self.members:
            first = islice(view.waiting, self.settings.batch_size)
            self.members = {one.uid: one for one in first}
        return run_batch(view, self.members.values(), self.limits)

    def on_finish(self, request: RequestView) -> None:
        """Take it out of the batch."""
        self.members.pop(request.uid, None)

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        """Preempt the request that came last; it goes on in the same batch when there is room."""
        return latest(view, requester)
