"""A step of a batch whose members are fixed until the last of them ends."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from camshaft.contracts.scheduler import Item, Plan

from .admit import admit
from .tokens import ChunkRule, Room, tokens_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.scheduler import RequestView, SchedulerLimits, View

LOOK_AGAIN_S = 1.0
"""Until a batch is planned again whose members all wait; what they wait for wakes the engine."""


def run_batch(view: View, members: Collection[RequestView], limits: SchedulerLimits) -> Plan:
    """Plan a step of a batch: its decodes, and as much of its prompts as the step holds.

    Args:
        view: Nobody but members runs, and what computes modules of their prompts.
        members: Those that have not ended; some may wait, for room in a step or after a preemption.
        limits: Of the recipe.
    """
    decodes, items = view.one_pending[: limits.step_tokens], list[Item]()
    left = limits.step_tokens - len(decodes)
    room = Room(left, view.free_slots, left, limits.step_tokens)
    rule = ChunkRule(most=limits.step_tokens)
    for request in view.more_pending:
        tokens = tokens_for(request.computed, request.pending, room, rule)
        if tokens:
            items.append(Item(request, tokens))
            room.tokens -= tokens
    ahead = takewhile(lambda one: one.is_module or one.preemptions, view.waiting)
    waiting = [one for one in ahead if one.is_module]
    waiting += [one for one in members if one in view.waiting and not one.is_module]
    items.extend(admit(view, waiting, room, rule, lambda _: False))
    if not items and not decodes:  # those left wait for their pages, and others may not begin yet
        return Plan(wake_at=view.now + LOOK_AGAIN_S)
    return Plan(items, one_each=decodes)
