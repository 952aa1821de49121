"""Who gives way to whom under `slo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from camshaft.contracts.scheduler import RequestView, View

    Rank = tuple[bool, int]


def rank(request: RequestView, turns: AbstractSet[int]) -> Rank:
    """Return a request's rank, smaller is more urgent: who got its turn by age, then by priority.

    Args:
        request: Whose.
        turns: Uids of those that got their turn by age.
    """
    return request.uid not in turns, request.priority


def for_a_slot(view: View, requester: RequestView, turns: AbstractSet[int]) -> RequestView | None:
    """Return a running request of higher rank than a waiting one: the highest, cheapest to redo."""
    own = rank(requester, turns)
    below = [one for one in view.running if rank(one, turns) > own]
    if not below:
        return None
    return max(below, key=lambda one: (rank(one, turns), -one.computed, one.arrival, one.uid))


def for_pages(view: View, requester: RequestView, turns: AbstractSet[int]) -> RequestView | None:
    """Return the running request of the highest rank that came last, maybe the requester.

    Of those that run, the first of the most urgent rank is always safe. A waiting requester takes
    pages only from higher ranks than its own.
    """
    own = rank(requester, turns)
    below = [one for one in view.running if rank(one, turns) > own]
    if requester in view.waiting:
        candidates = below
    elif len(view.running) > 1:
        candidates = below or [one for one in view.running if rank(one, turns) == own]
    else:
        return None
    return max(candidates, key=lambda one: (rank(one, turns), one.arrival, one.uid), default=None)
