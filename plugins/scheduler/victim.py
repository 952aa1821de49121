"""Who gives way when pages run out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.scheduler import RequestView, View


def latest(view: View, requester: RequestView) -> RequestView | None:
    """Return the running request that came last, maybe the requester; waiting ones never preempt.

    The one that came first is always safe, so that it ends and the next one is the first.
    """
    last, running = requester, False
    for one in view.running:
        if one.uid == requester.uid:
            running = True
        elif (one.arrival, one.uid) > (last.arrival, last.uid):
            last = one
    # a waiting one has nothing that it could lose, and one that runs alone nobody to give way to
    return last if running and len(view.running) > 1 else None
