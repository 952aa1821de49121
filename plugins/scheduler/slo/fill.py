"""What prompts get of one step: the most urgent first, whether they run already or wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item

from ..admit import LOOK_AHEAD
from ..tokens import tokens_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.contracts.scheduler import RequestView, View

    from ..prefix_wait import PrefixWait
    from ..tokens import ChunkRule, Room
    from .pace import Pace
    from .queue import Key, Place, SloQueue


class Filling:
    """Of one plan.

    Attributes:
        items: What was given out.
        blocked: Who would have started, but for a slot or for the time of those that run.
    """

    def __init__(
        self,
        view: View,
        queue: SloQueue,
        pace: Pace,
        room: Room,
        rule: ChunkRule,
        prefix_wait: PrefixWait | None,
        turn_away: Callable[[Place, int], None],
    ) -> None:
        """Prepare.

        Args:
            view: Of the engine.
            queue: Who waits.
            pace: Measured for this plan.
            room: Slots to give out; its tokens are set by who asks.
            rule: How prompts are cut.
            prefix_wait: Or None, where nobody waits for another one's pages.
            turn_away: Told who has so many tokens to compute that it would be late.
        """
        self.items: list[Item] = []
        self.blocked: Place | None = None
        self._view = view
        self._queue = queue
        self._pace = pace
        self._room = room
        self._rule = rule
        self._prefix_wait = prefix_wait
        self._turn_away = turn_away
        self._closed = False
        self._passed = 0
        self._joining = 0
        self._given = 0

    def fill(self, running: list[tuple[Key, RequestView]]) -> None:
        """Give the room out.

        Args:
            running: Prompts that are not computed yet, by the keys that they had when they waited.
        """
        self._joining = len(running)
        if self._prefix_wait is not None:
            self._prefix_wait.begin(self._view, [request for _, request in running])
        todo = sorted(running, key=lambda one: (one[0], one[1].uid), reverse=True)
        while True:
            place = None if self._closed else self._queue.first(self._view)
            if todo and (place is None or self._goes_first(todo[-1][0], place)):
                request = todo.pop()[1]
                if self._has_room(request):
                    self._give(request, request.computed, request.pending)
            elif place is not None:
                self._closed = not (self._has_room(place.request) and self._start(place))
            else:
                return

    def _goes_first(self, key: Key, place: Place) -> bool:
        """Whether one that runs comes before one that waits.

        Where pages are short it does: it may need just one more to end, and give back all.
        """
        return self._queue.short or key <= place.key

    def _has_room(self, request: RequestView) -> bool:
        """Set the room to what is left for a request, by those that it must leave their time."""
        chunk = self._pace.chunk(self._view, request.priority)
        self._room.most, self._room.tokens = chunk, chunk - self._given
        return self._room.tokens > 0

    def _start(self, place: Place) -> bool:
        """Give a waiting request its first tokens. False if nobody behind it may start either."""
        request, view = place.request, self._view
        if not request.ready:
            return self._pass(place)
        allowed = self._room.slots and self._pace.allows(view, self._joining, request)
        if not allowed:
            self.blocked = place
            return False
        cached = view.cached_tokens(request)
        left = request.pending - cached
        if view.now + self._pace.first_token_s(left, request.priority) > place.due:
            self._turn_away(place, left)
            return True
        if self._prefix_wait is not None and self._prefix_wait.holds(view, request):
            return self._pass(place)
        if not self._give(request, cached, left):
            return False
        self._queue.offer(place, planned=True)
        self._room.slots -= 1
        self._joining += 1
        return True

    def _pass(self, place: Place) -> bool:
        self._queue.offer(place, planned=False)
        self._passed += 1
        # an empty step looks on for somebody who is ready
        return self._passed < LOOK_AHEAD or not self._given

    def _give(self, request: RequestView, start: int, left: int) -> bool:
        tokens = tokens_for(start, left, self._room, self._rule)
        if tokens:
            self.items.append(Item(request, tokens))
            self._given += tokens
        return bool(tokens)
