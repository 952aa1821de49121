from __future__ import annotations

import pytest

from camshaft.loop.clock import VirtualClock
from camshaft.loop.queues import Waiting
from camshaft.loop.slots import Slots
from camshaft.loop.state import RequestState
from camshaft.testing.engines import make_request


def state(uid: int, arrival: float, *, preempted: bool = False) -> RequestState:
    request = make_request(f"r{uid}", [5])
    request.arrival = arrival
    one = RequestState(uid, request, frozenset(), 100, 0)
    one.preemptions = int(preempted)
    return one


def test_a_slot_is_given_out_again_only_behind_its_fence() -> None:
    slots = Slots(2)
    assert [slots.take(), slots.take()] == [0, 1]
    slots.release(0, step=5)
    slots.fence(4)
    assert slots.free == 0
    slots.fence(5)
    assert slots.take() == 0


def test_preempted_requests_wait_before_new_ones_and_by_arrival() -> None:
    waiting = Waiting()
    waiting.append(state(1, 1.0))
    waiting.put_back(state(2, 3.0, preempted=True))
    waiting.put_back(state(3, 2.0, preempted=True))
    assert [one.uid for one in waiting] == [3, 2, 1]


def test_removing_from_the_middle_keeps_the_order() -> None:
    waiting = Waiting()
    states = [state(uid, float(uid)) for uid in (1, 2, 3)]
    for one in states:
        waiting.append(one)
    waiting.remove(states[1])
    assert [one.uid for one in waiting] == [1, 3]


def test_virtual_time_runs_callbacks_at_their_own_times() -> None:
    clock, seen = VirtualClock(), []
    clock.call_at(2.0, lambda: seen.append(("late", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("early", clock.now())))
    clock.advance_to(3.0)
    assert seen == [("early", 1.0), ("late", 2.0)]
    with pytest.raises(ValueError, match="backwards"):
        clock.advance_to(2.5)
