from __future__ import annotations

import numpy as np

from camshaft.contracts.scheduler import Rows
from camshaft.loop.columns import Columns, Share
from camshaft.loop.state import RequestState, Status
from camshaft.loop.stops import StopIds
from camshaft.loop.table import SlotTable
from camshaft.testing.engines import make_request


def running(table: SlotTable, uid: int, slot: int, max_tokens: int = 4) -> RequestState:
    request = make_request(f"r{uid}", [5, 6, 7], max_tokens)
    state = RequestState(uid, request, frozenset(), 100, 0)
    state.slot, state.status = slot, Status.RUNNING
    table.seat(state)
    return state


def test_a_request_and_its_row_are_one() -> None:
    table = SlotTable(4)
    state = running(table, 9, 2)
    table.computed[2] = 2
    state.granted = 8
    assert (state.computed, int(table.granted[2]), int(table.uid[2])) == (2, 8, 9)


def test_who_leaves_keeps_its_counts_and_an_empty_row() -> None:
    table = SlotTable(4)
    state, other = running(table, 1, 0), running(table, 2, 3)
    table.vacate(state)
    table.known[0] = 77
    assert (state.known, int(table.uid[0]), table.order.tolist()) == (3, 0, [3])
    assert table.at(np.array([3])) == [other]


def test_order_is_of_admission_not_of_slots() -> None:
    table = SlotTable(4)
    for uid, slot in enumerate((2, 0, 3), 1):
        running(table, uid, slot)
    assert table.order.tolist() == [2, 0, 3]


def test_a_launched_step_advances_the_counts_of_its_requests_only() -> None:
    table = SlotTable(4)
    prompt, chunk, idle = (running(table, uid, uid) for uid in (1, 2, 3))
    shares = [Share(prompt, 0, 3, 0, Rows.LAST), Share(chunk, 0, 2, 0, Rows.NONE)]
    table.advance(Columns.of_shares(shares))
    assert [one.computed for one in (prompt, chunk, idle)] == [3, 2, 0]
    assert [one.known for one in (prompt, chunk, idle)] == [4, 3, 3]
    assert [one.pending for one in (prompt, chunk, idle)] == [1, 1, 3]
    assert [one.in_flight for one in (prompt, chunk, idle)] == [1, 1, 0]
    assert [one.on_device for one in (prompt, chunk, idle)] == [1, 0, 0]


def test_the_last_token_of_a_request_is_never_pending() -> None:
    table = SlotTable(1)
    state = running(table, 1, 0, max_tokens=1)
    table.advance(Columns.of_shares([Share(state, 0, 3, 0, Rows.LAST)]))
    assert (state.known, state.pending, state.ready) == (4, 0, False)


def test_stop_ids_are_watched_as_long_as_somebody_has_them() -> None:
    stops = StopIds(10)
    stops.add({2, 5})
    stops.add({2})
    stops.add(())
    stops.remove({2, 5})
    assert stops.among(np.array([1, 2, 5, 99], dtype=np.int32)).tolist() == [
        False,
        True,
        False,
        False,
    ]
    stops.remove({2})
    assert not stops.among(np.arange(10, dtype=np.int32)).any()
