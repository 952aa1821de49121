"""Which waiting requests start in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item

from .tokens import ChunkRule, Room, tokens_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from camshaft.contracts.scheduler import RequestView, View

LOOK_AHEAD = 32
"""Requests that a step passes over before the rest has to wait: it looks at few of a long queue."""


def admit(
    view: View,
    candidates: Iterable[RequestView],
    room: Room,
    rule: ChunkRule,
    passes: Callable[[RequestView], bool],
) -> Iterator[Item]:
    """Yield requests in order, until one does not fit: nobody is overtaken for ever.

    Args:
        view: Of the engine.
        candidates: Waiting requests, in the order in which they should start.
        room: Of the step; what is yielded is taken from it.
        rule: How prompts are cut.
        passes: Whether to leave a request for another step and go on with the next.
    """
    passed = 0
    for request in candidates:
        if not room.tokens or not room.slots:
            return
        if passed >= LOOK_AHEAD and room.tokens < room.step:
            return  # an empty step looks on for somebody who is ready
        if not request.ready or passes(request):
            passed += 1
            continue
        cached = view.cached_tokens(request)
        left = request.pending - cached
        if rule.whole and left > room.tokens and room.tokens < room.step:
            return
        tokens = tokens_for(cached, left, room, rule)
        if not tokens:
            return
        yield Item(request, tokens)
        room.tokens -= tokens
        room.slots -= 1
