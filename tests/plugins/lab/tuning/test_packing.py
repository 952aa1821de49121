"""Packing on operations made by hand: who starts when, and when all is done."""

from __future__ import annotations

import pytest

from camshaft.plugins.lab.tuning.operations import Operation, joined
from camshaft.plugins.lab.tuning.packing import Task, pack


def compute(seconds: float, use: float = 1.0) -> Operation:
    return Operation("product", seconds, (use * seconds, 0.0, 0.0))


def memory(seconds: float, use: float = 1.0) -> Operation:
    return Operation("attention", seconds, (0.0, use * seconds, 0.0))


def network(seconds: float) -> Operation:
    return Operation("all-reduce", seconds, (0.0, 0.0, seconds))


def chain(*operations: Operation, at: int = 0) -> list[Task]:
    """Return tasks in a row, the first one numbered `at`."""
    return [
        Task(one, (at + number - 1,) if number else ()) for number, one in enumerate(operations)
    ]


def test_a_chain_takes_the_sum_of_its_operations() -> None:
    packing = pack(chain(compute(2), memory(3), compute(4)), overlap=1.0)
    assert packing.seconds == 9.0
    assert packing.starts == (0.0, 2.0, 5.0)
    assert packing.busy == (6.0, 3.0, 0.0)


@pytest.mark.parametrize(("overlap", "seconds"), [(1.0, 4.0), (0.5, 6.0), (0.0, 8.0), (-0.5, 10.0)])
def test_two_of_different_needs_hide_as_much_of_each_other_as_was_measured(
    overlap: float, seconds: float
) -> None:
    assert pack([Task(compute(4)), Task(memory(4))], overlap).seconds == seconds


def test_of_two_with_the_same_need_the_second_waits() -> None:
    packing = pack([Task(memory(4)), Task(memory(3))], overlap=1.0)
    assert packing.seconds == 7.0
    assert packing.starts == (0.0, 4.0)


def test_the_shorter_one_hinders_only_while_it_runs() -> None:
    # at 0.5 both run at two thirds: 2 s of the shorter one take 3, in which the other one does 2
    assert pack([Task(compute(6)), Task(memory(2))], overlap=0.5).seconds == 7.0


def test_two_nano_batches_in_lockstep_keep_both_resources_busy() -> None:
    layers = [compute(2), memory(2)] * 3
    tasks = [*chain(*layers), *chain(*layers, at=6)]
    packing = pack(tasks, overlap=1.0)
    assert packing.seconds == 14.0  # 12 and the first operation of one of them
    assert packing.starts[:3] == (0.0, 2.0, 4.0)
    assert packing.starts[6:9] == (2.0, 4.0, 6.0)


def test_a_network_hinders_nobody_on_the_device() -> None:
    assert pack([Task(network(4)), Task(compute(4))], overlap=0.0).seconds == 4.0
    assert pack([Task(network(4)), Task(network(4))], overlap=1.0).seconds == 8.0


def test_what_both_need_of_one_resource_is_not_there_twice() -> None:
    greedy = Operation("product", 4.0, (4.0, 2.0, 0.0))
    assert pack([Task(greedy), Task(memory(4))], overlap=1.0).seconds == 6.0


def test_the_one_with_most_work_behind_it_goes_first() -> None:
    tasks = [Task(memory(1)), Task(memory(1)), Task(compute(5), (1,))]
    packing = pack(tasks, overlap=1.0)
    assert packing.starts == (1.0, 0.0, 1.0)
    assert packing.seconds == 6.0


def test_nobody_starts_before_all_that_it_waits_for() -> None:
    tasks = [Task(compute(1)), Task(memory(5)), Task(compute(1), (0, 1))]
    assert pack(tasks, overlap=1.0).starts[2] == 5.0


def test_operations_that_take_no_time_end() -> None:
    assert pack(chain(compute(0), memory(0), compute(1)), overlap=1.0).seconds == 1.0


def test_a_joined_operation_is_bound_by_what_it_needs_most() -> None:
    both = joined("layer", compute(2), memory(3), network(1))
    assert (both.seconds, both.busy, both.bound) == (6.0, (2.0, 3.0, 1.0), 1)
    assert both.use(1) == 0.5
