"""Dynamic batching: a batch waits a little for company, then runs to its end.

Source: the dynamic batcher of NVIDIA's Triton Inference Server, with its preferred size and its
longest delay in the queue. Departure: who arrives while a batch waits joins it up to its largest
size, and a batch that has begun is closed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Plan, Scheduler

from .batch_run import run_batch
from .victim import latest

if TYPE_CHECKING:
    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import RequestView, SchedulerLimits, View

    from .components import DynamicSettings


class Dynamic(Scheduler):
    """Starts a batch when enough requests wait, or the first of them has waited long enough."""

    def __init__(self, settings: DynamicSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.limits = limits
        self.members: dict[int, RequestView] = {}

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        if not self.members:
            due = self._due(view)
            if due is not None:
                return Plan(wake_at=due)
            first = islice(view.waiting, self.settings.max_batch_size)
            self.members = {one.uid: one for one in first}
        return run_batch(view, self.members.values(), self.limits)

    def _due(self, view: View) -> float | None:
        """Return until when to wait for more requests, if not to begin now."""
        if len(view.waiting) >= self.settings.min_batch_size:
            return None
        first = next(iter(view.waiting), None)
        due = view.now if first is None else first.arrival + self.settings.max_wait_s
        return due if due > view.now else None

    def on_finish(self, request: RequestView) -> None:
        """Take it out of the batch."""
        self.members.pop(request.uid, None)

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        """Preempt the request that came last; it goes on in the same batch when there is room."""
        return latest(view, requester)
