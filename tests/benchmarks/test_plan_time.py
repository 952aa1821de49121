"""Planning: what is timed, and that it does not grow with the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import plan_time
from camshaft.loop.queues import Waiting
from camshaft.loop.state import RequestState


@pytest.mark.parametrize("case", plan_time.CASES)
def test_a_plan_looks_at_few_of_those_that_wait(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_time, "RUNNING", 16)
    looked, listed = [0], Waiting.__iter__

    def counted(self: Waiting) -> Iterator[RequestState]:
        for state in listed(self):
            looked[0] += 1
            yield state

    monkeypatch.setattr(Waiting, "__iter__", counted)
    plans = plan_time.microseconds(case, waiting=600, steps=20)
    assert len(plans) >= 20
    assert looked[0] < 80 * (len(plans) + 40)
