"""What the device remembers of positions that modules leave gaps between."""

from __future__ import annotations

from camshaft.executor.state import DeviceState
from camshaft.step import Admissions, Step, int32


def admit(state: DeviceState, slots: list[int], offsets: list[int]) -> None:
    admitted = Admissions(
        slots=int32(slots), context=int32([0] * len(slots)), offsets=int32(offsets)
    )
    state.update(Step(admissions=admitted))


def test_offsets_belong_to_whoever_has_the_slot() -> None:
    state = DeviceState(slots=4, groups=1, max_pages=2, ratio=1, drafts=0, device="cpu")
    admit(state, [0, 2], [0, 24])
    assert state.offsets.tolist() == [0, 0, 24, 0, 0]
    assert [state.shifts(int32(slots)) for slots in ([0, 1], [1, 2], [2])] == [False, True, True]
    admit(state, [1], [])
    assert state.shifts(int32([2]))
    admit(state, [2, 3], [])
    assert state.offsets.tolist() == [0] * 5
    assert not state.shifts(int32([0, 1, 2, 3]))
