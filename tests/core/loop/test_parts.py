from __future__ import annotations

import threading

import pytest

from camshaft.contracts.cache import TableWrite
from camshaft.loop.batch import Batch
from camshaft.loop.clock import Clock, VirtualClock
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


def test_what_is_posted_runs_at_the_next_turn_and_what_it_posts_at_the_one_after() -> None:
    clock, seen = Clock(), []

    def again() -> None:
        seen.append("first")
        clock.post(lambda: seen.append("second"))

    clock.post(again)
    assert seen == []
    clock.run_due()
    assert seen == ["first"]
    clock.run_due()
    assert seen == ["first", "second"]


def test_a_rest_ends_when_another_thread_posts() -> None:
    clock = Clock()
    threading.Timer(0.02, lambda: clock.post(lambda: None)).start()
    before = clock.now()
    clock.rest(before + 30)
    assert clock.now() - before < 10


def test_virtual_time_rests_until_the_next_event_and_not_at_all_if_something_is_posted() -> None:
    clock = VirtualClock()
    clock.call_at(2.0, lambda: clock.post(lambda: None))
    clock.rest(5.0)
    clock.rest(5.0)
    assert clock.now() == 2.0


def test_virtual_time_runs_callbacks_at_their_own_times() -> None:
    clock, seen = VirtualClock(), []
    clock.call_at(2.0, lambda: seen.append(("late", clock.now())))
    clock.call_at(1.0, lambda: seen.append(("early", clock.now())))
    clock.advance_to(3.0)
    assert seen == [("early", 1.0), ("late", 2.0)]
    with pytest.raises(ValueError, match="backwards"):
        clock.advance_to(2.5)


def test_pages_that_are_taken_back_are_not_wiped_with_the_step() -> None:
    """They may be somebody else's by then, and a load may have filled them."""
    one, other = state(1, 0.0), state(2, 0.0)
    batch = Batch(1, writes=[(one, TableWrite(0, 5, [2, 13, 10])), (other, TableWrite(0, 0, [12]))])
    batch.fresh = [(one, 0, 2), (one, 0, 13), (one, 0, 10), (other, 0, 12)]
    batch.take_back(one, 6)
    assert batch.fresh == [(one, 0, 2), (other, 0, 12)]
