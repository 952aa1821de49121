"""Priorities and deadlines: who has the least slack goes first, and who would be late is told so.

Requests start by priority. Among equals the one with the least slack is first: what is left until
its latest start, which is when its first token is wanted less the time that its prompt takes by the
predictor. Decodes come first and prompts are cut, as in `continuous`, here so that those that run
keep the time per token that they want: by the slack of the one that is nearest to missing it, of
those that are as urgent as the prompt. The others are left out of a step in which an urgent prompt
may be late, as long as they are ahead of their own time.

Sources: Mok, "Fundamental Design Problems of Distributed Systems for the Hard-Real-Time
Environment", MIT 1983 (least slack first); Agrawal et al., "Sarathi-Serve", OSDI 2024 (chunks by
latency); Patke et al., "Queue Management for SLO-Oriented Large Language Model Serving" (QLM), SoCC
2024 (order and preemption by predicted times). Departures: requests that cannot be in time are
refused, or else go behind those that can, since in overload least slack first would serve nobody in
time; and after `aging_s` the oldest gets every n-th start, whatever its priority.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Plan, Refusal, Scheduler

from ..components import SloSettings
from ..preempt import no_swap_faults, preempt
from ..prefetch import Prefetch
from ..prefix_wait import PrefixWait
from ..tokens import ChunkRule, Room
from .fill import Filling
from .pace import Pace, Paused
from .pause import is_pressing, to_pause
from .queue import FIRST, SloQueue
from .retry import Retry
from .victim import for_a_slot, for_pages

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.cache import NoSpace
    from camshaft.contracts.scheduler import Preemption, RequestView, SchedulerLimits, View

    from ..preempt import Wanted
    from .queue import Place

PLANS_TO_MAKE_ROOM = 4
"""Until a slot that was taken from somebody can be given out: steps in flight still use it."""


class Slo(Scheduler):
    """See above. Requests that name no time get the settings', or none."""

    def __init__(self, settings: SloSettings, limits: SchedulerLimits) -> None:
        self.settings = settings
        self.limits = limits
        self._queue = SloQueue(settings)
        self._pace = Pace(settings)
        self._retry = Retry()
        self._prefetch = Prefetch(limits.max_running)
        self._prefix_wait = PrefixWait() if settings.share_prefixes else None
        self._rule = ChunkRule(limits.step_tokens, settings.chunk_align)
        self._way: Wanted = "cheaper" if settings.preemption == "off" else settings.preemption
        self._running: dict[int, Place] = {}
        self._since_turn = 0
        self._plans = 0

    @classmethod
    def supports(cls, settings: object, *, predicts: bool, no_swap: str = "") -> list[str]:
        """Need a predictor to keep times per token, and a cache with tiers for swap."""
        assert isinstance(settings, SloSettings)
        reasons = no_swap_faults(settings.preemption, no_swap)
        if settings.tpot_s is not None and not predicts:
            reasons.append("`tpot_s` needs to know how long a step takes: name a `predictor`")
        return reasons

    def plan(self, view: View) -> Plan:
        """See `Scheduler.plan`."""
        self._plans += 1
        self._retry.pass_time(view.now)
        self._note_started(view)
        decodes, prompts = view.one_pending[: self.limits.step_tokens], view.more_pending
        plan = Plan(one_each=decodes)
        if prompts or (view.waiting and view.free_slots):
            blocked = self._fill(view, plan, prompts)
        else:
            self._pace.skip(view, decodes)
            self._find_late(view, plan)
            blocked = self._queue.first(view)
        if blocked is not None:
            plan.preempt = self._make_way(view, blocked)
        if view.has_tiers:
            soon = self._queue.soon(view)
            plan.prefetch = self._prefetch.due(view, plan.items, soon)
        return plan

    def _fill(self, view: View, plan: Plan, prompts: Collection[RequestView]) -> Place | None:
        """Add prompts to a plan; return who could not start for want of a slot or of time."""
        pace, step_tokens, decodes = self._pace, self.limits.step_tokens, plan.one_each
        pace.measure(view, decodes, prompts, step_tokens - len(decodes))
        self._pause(view, plan, prompts)
        self._find_late(view, plan)
        self._give_turn(view, prompts)
        room = Room(0, view.free_slots, most=0, step=step_tokens)
        turn_away = partial(self._turn_away, view, plan)
        filling = Filling(view, self._queue, pace, room, self._rule, self._prefix_wait, turn_away)
        filling.fill([(self._running[one.uid].key, one) for one in prompts])
        plan.items = filling.items
        if not plan.items:
            plan.one_each = decodes  # nobody needs the time of those that were left out
        pace.note(view, plan)
        return filling.blocked

    def _pause(self, view: View, plan: Plan, prompts: Collection[RequestView]) -> None:
        """Leave less urgent decodes out that are ahead of their time, if a prompt may be late.

        Those that want no time are left out of every other step.
        """
        place = self._most_urgent(view, prompts)
        if place is None or not is_pressing(place, self._pace):
            return
        turns, undated = self._queue.turns, self._plans % 2 == 0
        paused = to_pause(plan.one_each, place, self._pace, turns, undated=undated)
        if paused:
            uids = {one.uid for one in paused}
            plan.one_each = kept = [one for one in plan.one_each if one.uid not in uids]
            most, priority = self.limits.step_tokens - len(kept), place.request.priority
            self._pace.measure(view, kept, prompts, most, Paused(paused, priority))

    def _most_urgent(self, view: View, prompts: Collection[RequestView]) -> Place | None:
        places = [self._running[one.uid] for one in prompts]
        first = self._queue.first(view) if view.free_slots else None
        if first is not None:
            places.append(first)
        return min(places, key=lambda one: one.key, default=None)

    def _note_started(self, view: View) -> None:
        for place in self._queue.settle(view):
            uid = place.request.uid
            self._running[uid] = place
            self._since_turn = 0 if uid in self._queue.turns else self._since_turn + 1

    def _find_late(self, view: View, plan: Plan) -> None:
        for place, left in self._queue.late(view, self._pace):
            self._turn_away(view, plan, place, left)

    def _turn_away(self, view: View, plan: Plan, place: Place, left: int) -> None:
        """Refuse one that cannot be in time with so many tokens, or let it go behind the others."""
        if self.settings.admission == "queue":
            self._queue.demote(place, view.now)
            return
        request = place.request
        wanted = place.due - request.arrival
        left_s = self._pace.first_token_s(left, request.priority)
        soonest = view.now - request.arrival + left_s
        reason = (
            f"the first token is wanted within {wanted:.3g} s and could come after {soonest:.3g} s"
        )
        plan.refuse.append(Refusal(request, reason, self._retry.after_s(len(view.waiting))))
        self._queue.forget(request)

    def _give_turn(self, view: View, prompts: Collection[RequestView]) -> None:
        """Let the oldest go first if it has waited for long and enough others went before it.

        It may be one that runs and gets no tokens for its prompt.
        """
        if self._since_turn < self.settings.aging_every - 1:
            return
        waiting, turns = self._queue.oldest(view), self._queue.turns
        oldest = min(prompts, key=lambda one: (one.arrival, one.uid), default=None)
        since = view.now - self.settings.aging_s if waiting is None else waiting.request.arrival
        if oldest is not None and oldest.arrival <= since and oldest.uid not in turns:
            turns.add(oldest.uid)
            self._running[oldest.uid].key = FIRST
            self._since_turn = 0
        elif waiting is not None and waiting.request.uid not in turns:
            self._queue.give_turn(waiting)

    def _make_way(self, view: View, place: Place) -> list[Preemption]:
        """Take the place of a less urgent request if waiting on would cost too much of the slack.

        Not while a slot is about to be free, and not again before the last one could be.
        """
        request, slots = place.request, self.limits.max_running
        due = request.arrival + self.settings.preempt_at * (place.latest - request.arrival)
        comes = not view.free_slots and len(view.running) < slots
        if self.settings.preemption == "off" or view.now < due or comes:
            return []
        if self._plans < place.asked:
            return []
        victim = for_a_slot(view, request, self._queue.turns)
        preemption = preempt(view, victim, self._way, cause="urgent")
        if preemption is None:
            return []
        place.asked = self._plans + PLANS_TO_MAKE_ROOM
        return [preemption]

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> Preemption | None:
        """See `Scheduler.victim`."""
        return preempt(view, for_pages(view, requester, self._queue.turns), self._way)

    def on_wait(self, request: RequestView) -> None:
        """Put it into the queue."""
        self._running.pop(request.uid, None)
        self._queue.add(request, self._pace)

    def on_finish(self, request: RequestView) -> None:
        """Forget it."""
        if request.outputs:
            self._retry.answered()
        self._running.pop(request.uid, None)
        self._queue.forget(request)
        self._prefetch.forget(request)
        if self._prefix_wait is not None:
            self._prefix_wait.forget(request)
