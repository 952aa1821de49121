"""Less urgent decodes that are left out of a step, so that an urgent prompt gets their time."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from camshaft.contracts.scheduler import RequestView

    from .pace import Pace
    from .queue import Place

PRESSING = 0.3
"""Share of the time that a request gave: with less slack, others make room for its prompt."""


def is_pressing(place: Place, pace: Pace) -> bool:
    """Whether a prompt, whether it waits or runs, could be late for its first token."""
    request = place.request
    if place.due == inf:
        return False
    left_s = pace.first_token_s(request.pending, request.priority)
    return place.due - pace.now - left_s < PRESSING * (place.due - request.arrival)


def to_pause(
    decodes: Iterable[RequestView],
    place: Place,
    pace: Pace,
    turns: AbstractSet[int],
    *,
    undated: bool,
) -> list[RequestView]:
    """Return which decodes give their time to a prompt.

    Args:
        decodes: To choose from.
        place: Of the prompt.
        pace: Measured with all of them.
        turns: Uids of requests that go on whatever is urgent.
        undated: Whether those that want no time per token may be chosen.
    """
    priority = place.request.priority
    return [
        one
        for one in decodes
        if one.priority > priority and one.uid not in turns and pace.can_pause(one, undated=undated)
    ]
