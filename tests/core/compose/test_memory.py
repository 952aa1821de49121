"""How many pages an engine gets."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft import DeviceError
from camshaft.compose import draw
from camshaft.compose.memory import MemoryPlan, plan_memory
from camshaft.contracts.hardware import MemoryReport
from camshaft.testing.toy import pool, toy_recipe

PAGE = 2 * 2 * 2 * 8 * 4 * 4  # keys and values, layers, heads, values a head, bytes, tokens
FREE = MemoryReport(total=2**30, free=2**30)


def plan(memory: str, report: MemoryReport = FREE, **scheduler: int) -> MemoryPlan:
    changes: dict[str, dict[str, Any]] = {"cache": {"memory": memory}, "scheduler": scheduler}
    return plan_memory(draw(toy_recipe(changes=changes)), 1000, report)


def test_a_size_is_divided_into_pages_and_one_stays_empty() -> None:
    found = plan(str(10 * PAGE + 5))
    assert (found.pages, found.pool_tokens, found.cache_bytes) == (9, 36, 10 * PAGE)
    assert plan(pool(9)).pages == 9


def test_a_request_can_be_as_long_as_the_pool_or_the_model() -> None:
    assert plan(pool(9)).room == 36
    assert plan(pool(200)).room == 512


def test_auto_takes_what_the_requests_that_run_at_once_may_need() -> None:
    assert plan("auto", max_running=3).pages == 3 * 512 // 4


def test_auto_takes_half_of_what_is_free_at_most() -> None:
    assert plan("auto", MemoryReport(2**30, 100 * PAGE)).pages == 49


def test_more_than_is_free_is_refused_with_both_numbers() -> None:
    with pytest.raises(DeviceError, match="3 MiB are asked for and 2 MiB are free"):
        plan("3MiB", MemoryReport(2**30, 2 * 2**20))


@pytest.mark.parametrize("memory", [str(2 * PAGE), "auto"])
def test_too_little_for_a_short_sequence_is_refused_with_what_is_needed(memory: str) -> None:
    with pytest.raises(DeviceError, match=f"give at least {3 * PAGE} bytes"):
        plan(memory, MemoryReport(2**30, 4 * PAGE))


def test_auto_takes_what_a_measured_step_leaves() -> None:
    report = MemoryReport(2**30, 100 * PAGE)
    found = plan_memory(
        draw(toy_recipe(changes={"cache": {"memory": "auto"}})), 0, report, 30 * PAGE
    )
    assert found.pages == 69
