"""Between a cache with tiers and the executor: moves there, and what became of them back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..contracts.moves import NO_MOVES, Moved

if TYPE_CHECKING:
    from ..contracts.cache import KVManager
    from ..contracts.executor import Executor

_log = logging.getLogger("camshaft.moves")


class Mover:
    """Hands over page moves. Nobody waits for one but `finish`."""

    def __init__(self, cache: KVManager, executor: Executor) -> None:
        self._cache = cache
        self._executor = executor
        self._under_way: set[int] = set()
        self._failed: list[Moved] = []

    @property
    def is_busy(self) -> bool:
        """Whether the cache has not heard of the end of every move."""
        return bool(self._under_way or self._failed)

    def push(self) -> Exception | None:
        """Begin what the cache wants moved now; return why nothing of it can be, if so."""
        moves = self._cache.take_moves()
        if moves is NO_MOVES:
            return None
        tickets = [one.ticket for one in (*moves.exports, *moves.loads)]
        try:
            self._executor.move(moves.exports, moves.loads)
        except Exception as error:  # noqa: BLE001 - costs what waits for it, not the engine
            _log.warning("pages could not be moved: %s", error)
            self._failed += [Moved(ticket, ok=False) for ticket in tickets]
            return error
        self._under_way.update(tickets)
        return None

    def poll(self) -> None:
        """Tell the cache what has ended."""
        ended, self._failed = self._failed, []
        if self._under_way:
            ended += self._executor.moved()
        if ended:
            self._under_way.difference_update(one.ticket for one in ended)
            self._cache.moved(ended)

    def finish(self, within_s: float = 5.0) -> None:
        """Begin what is wanted and wait for it, but not for ever: the engine is to end."""
        self.push()
        self._executor.drain()
        until = time.monotonic() + within_s
        self.poll()
        while self.is_busy and time.monotonic() < until:
            time.sleep(0.001)
            self.poll()
