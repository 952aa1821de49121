from __future__ import annotations

import pytest

from camshaft.contracts.executor import Executor
from camshaft.executor.late import EarlyReadError, LateExecutor
from camshaft.executor.null import NullExecutor
from camshaft.step import Step
from camshaft.testing.executor import ExecutorContract
from camshaft.testing.steps import StepDriver


class TestContract(ExecutorContract):
    def make(self) -> Executor:
        return LateExecutor(NullExecutor(), 1)


class TestContractTwoStepsLate(ExecutorContract):
    depth = 2

    def make(self) -> Executor:
        return LateExecutor(NullExecutor(), 2)


class Recorder(NullExecutor):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def launch(self, step: Step) -> None:
        self.seen.append(f"launch {step.id}")
        super().launch(step)

    def sample(self, step, masks=None) -> None:
        self.seen.append(f"sample {step} {masks}")

    def close(self) -> None:
        self.seen.append("close")


def in_flight(executor: Executor, steps: int) -> StepDriver:
    """Launch a prompt and decodes, and wait for nothing."""
    drive = StepDriver(executor, depth=9)
    state = drive.open([5], 0, [1, 2])
    for _ in range(steps):
        drive.launch((state, 1))
    return drive


@pytest.mark.parametrize("late", [1, 2])
def test_a_result_cannot_be_read_before_it_is_due(late: int) -> None:
    executor = LateExecutor(NullExecutor(), late)
    in_flight(executor, late)
    with pytest.raises(EarlyReadError, match=f"step 1 was read after {late - 1} later launches"):
        executor.wait(1)


def test_nothing_is_executed_before_it_is_due() -> None:
    executor = LateExecutor(inner := Recorder(), 2)
    in_flight(executor, 3)
    assert inner.seen == []
    executor.wait(1)
    assert inner.seen == ["launch 1", "sample 1 None"]


def test_the_newest_result_is_due_only_after_a_drain() -> None:
    executor = LateExecutor(NullExecutor(), 1)
    in_flight(executor, 2)
    executor.wait(1)
    with pytest.raises(EarlyReadError):
        executor.wait(2)
    executor.drain()
    assert executor.wait(2).id == 2


def test_a_launch_ends_the_drain() -> None:
    executor = LateExecutor(NullExecutor(), 1)
    drive = in_flight(executor, 1)
    executor.drain()
    drive.launch((drive.order[1][0], 1))
    executor.wait(1)
    with pytest.raises(EarlyReadError):
        executor.wait(2)


def test_it_counts_how_late_results_were() -> None:
    executor = LateExecutor(NullExecutor(), 1)
    in_flight(executor, 3).finish()
    assert executor.most_late == 2


def test_masks_reach_the_inner_executor_with_their_step() -> None:
    executor = LateExecutor(inner := Recorder(), 1)
    in_flight(executor, 2)
    executor.sample(1, "ones")  # type: ignore[arg-type]
    executor.wait(1)
    assert inner.seen == ["launch 1", "sample 1 ones"]


def test_closing_closes_the_inner_executor() -> None:
    executor = LateExecutor(inner := Recorder(), 1)
    executor.close()
    assert inner.seen == ["close"]


def test_it_asks_for_fresh_pages_when_the_inner_one_does() -> None:
    inner = NullExecutor()
    inner.wants_fresh = True
    assert LateExecutor(inner, 1).wants_fresh
    assert not LateExecutor(NullExecutor(), 1).wants_fresh
