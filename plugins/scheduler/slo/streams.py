"""What those that run want of a step: when each one's next token is due, by priority.

A stream is in time as a whole if token k comes within k times its time per token after the first.
So one that is ahead can bear a longer step, and one that was held up needs shorter ones.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.contracts.scheduler import RequestView

    from ..components import SloSettings


class Streams:
    """Those of one step; whoever is less urgent than a prompt has no claim against it."""

    def __init__(self, settings: SloSettings, alone_s: float) -> None:
        """Begin with none.

        Args:
            settings: Of the scheduler.
            alone_s: What a step takes with a single decode: who wants less cannot have it.
        """
        self._settings = settings
        self._alone_s = alone_s
        self._start = 0.0
        self._flying = 0
        self._tightest: dict[int, float] = {}
        self._spare: dict[int, float] = {}

    def add(self, decodes: Iterable[RequestView], start: float, flying: int) -> None:
        """Take in those whose next token, after the ones in flight, is computed in the step.

        Args:
            decodes: They.
            start: When the step begins, seconds.
            flying: Steps in flight.
        """
        burst, default, alone = self._settings.tpot_burst, self._settings.tpot_s, self._alone_s
        tightest, spare = self._tightest, self._spare
        self._start, self._flying = start, flying
        for request in decodes:  # of all that a plan does only this takes time for each of them
            wanted = request.tpot_slo_s or default
            if wanted is None or wanted <= alone:
                continue
            slack, first, level = wanted, request.first_token_s, request.priority
            if first is not None:
                slack = first + wanted * (request.outputs + flying) - start
                if slack < -burst * wanted:
                    continue  # it was held up for long; the others are not to wait for it
            if wanted < tightest.get(level, inf):
                tightest[level] = wanted
            if slack < spare.get(level, inf):
                spare[level] = slack

    def can_pause(self, request: RequestView, *, undated: bool) -> bool:
        """Whether one that decodes is in time without this step, if the step is not too long.

        Args:
            request: It.
            undated: What is said of one that wants no time.
        """
        wanted = self.wanted_s(request)
        return undated if wanted == inf else self._slack_s(request, wanted) >= 2 * wanted

    def pause(self, request: RequestView, priority: int) -> None:
        """Take in one that is not in the step, so that prompts of this priority get on.

        It is to have its token in the step after it.
        """
        wanted = self.wanted_s(request)
        if wanted < inf:
            spare = self._slack_s(request, wanted) - wanted
            self._spare[priority] = min(self._spare.get(priority, inf), spare)

    def _slack_s(self, request: RequestView, wanted: float) -> float:
        first = request.first_token_s
        if first is None:
            return wanted
        return first + wanted * (request.outputs + self._flying) - self._start

    def join(self, request: RequestView) -> None:
        """Take in one that is going to decode."""
        level = request.priority
        self._tightest[level] = min(self._tightest.get(level, inf), self.wanted_s(request))

    def wanted_s(self, request: RequestView) -> float:
        """Return the time per token that a request wants, infinite if none or if it is hopeless."""
        wanted = request.tpot_slo_s or self._settings.tpot_s
        return wanted if wanted is not None and wanted > self._alone_s else inf

    def tightest_s(self, priority: int) -> float:
        """Return the shortest time per token that one of this priority must leave to others."""
        levels = self._tightest.items()
        return min((wanted for level, wanted in levels if level <= priority), default=inf)

    def spare_s(self, priority: int) -> float:
        """Return how long a step may take for prompts of this priority: infinite if nobody cares.

        However much ahead streams are, it is not longer than `tpot_burst` times the tightest.
        """
        levels = self._spare.items()
        spare = min((slack for level, slack in levels if level <= priority), default=inf)
        return min(spare, self._settings.tpot_burst * self.tightest_s(priority))
