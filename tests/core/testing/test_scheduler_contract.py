from __future__ import annotations

import pytest

from camshaft.contracts.scheduler import Item, Plan, Scheduler, SchedulerLimits
from camshaft.testing.rejects import failures
from camshaft.testing.scheduler import SchedulerContract


class Simple(Scheduler):
    """Everything that is ready, running requests first, until the budget is spent."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits

    def plan(self, view):
        items, budget, slots = [], self.limits.step_tokens, view.free_slots
        for request in self.order(view):
            tokens = self.share(request, budget)
            waiting = request not in view.running
            if request.ready and tokens and (slots or not waiting):
                items.append(Item(request, tokens))
                budget -= tokens
                slots -= waiting
        return Plan(items)

    def order(self, view):
        return [*view.running, *view.waiting]

    def share(self, request, budget):
        return min(request.pending, budget)

    def victim(self, view, requester, need):
        if requester not in view.running or len(view.running) < 2:
            return None
        return max(view.running, key=lambda one: (one.arrival, one.uid))


def verdict(scheduler: type[Simple], only: tuple[str, ...] = ()) -> list[str]:
    class Contract(SchedulerContract):
        def make(self, limits: SchedulerLimits) -> Scheduler:
            return scheduler(limits)

    return failures(Contract, only=only)


def test_a_good_scheduler_passes() -> None:
    assert verdict(Simple) == []


class FirstOnly(Simple):
    """Serves one request a step."""

    def order(self, view):
        return super().order(view)[:1]


def test_a_poor_scheduler_is_not_a_wrong_one() -> None:
    assert verdict(FirstOnly) == []


class Oversteps(Simple):
    """Plans all that is pending, whatever the budget."""

    def share(self, request, budget):
        return request.pending


class WholePrompts(Simple):
    """Never cuts: what is longer than the budget waits for ever."""

    def share(self, request, budget):
        return request.pending if request.pending <= budget else 0


class NeverPreempts(Simple):
    def victim(self, view, requester, need):
        return None


class PreemptsTheFirst(Simple):
    """Takes pages from whoever is about to finish, and hands them round."""

    def victim(self, view, requester, need):
        return min(view.running, key=lambda one: (one.arrival, one.uid), default=None)


class IgnoresSlots(Simple):
    def plan(self, view):
        plan = super().plan(view)
        planned = {item.request.uid for item in plan.items}
        late = [one for one in view.waiting if one.ready and one.uid not in planned]
        plan.items += [Item(one, 1) for one in late]
        return plan


class PlansForgotten(Simple):
    """Keeps planning what it saw, ended or not."""

    def __init__(self, limits):
        super().__init__(limits)
        self.seen = {}

    def order(self, view):
        self.seen |= {one.uid: one for one in super().order(view)}
        return list(self.seen.values())

    def share(self, request, budget):
        return max(1, super().share(request, budget))


class Marks(Simple):
    """Notes in the request itself what it gave it."""

    def share(self, request, budget):
        tokens = super().share(request, budget)
        request.known -= tokens // 8
        return tokens


class KeepsHalf(Simple):
    """Holds back half of the budget for others, also when it is all that there is."""

    def share(self, request, budget):
        return min(request.pending, budget, self.limits.step_tokens // 2)


@pytest.mark.parametrize(
    ("scheduler", "test"),
    [
        (Oversteps, "test_a_prompt_longer_than_the_budget_is_cut"),
        (WholePrompts, "test_a_prompt_longer_than_the_budget_is_cut"),
        (NeverPreempts, "test_pages_that_run_out_are_found_by_preemption"),
        (PreemptsTheFirst, "test_pages_that_run_out_are_found_by_preemption"),
        (IgnoresSlots, "test_one_slot_serves_all_in_turn"),
        (PlansForgotten, "test_every_request_ends_with_all_its_tokens"),
        (Marks, "test_planning_changes_nothing"),
        (KeepsHalf, "test_a_budget_of_one_token_is_enough"),
    ],
)
def test_a_scheduler_that_breaks_a_promise_is_rejected(scheduler: type[Simple], test: str) -> None:
    assert verdict(scheduler, only=(test,)) == [test]
