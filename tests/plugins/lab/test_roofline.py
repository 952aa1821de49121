"""Limits by hand: bytes and operations of one step, over rates that make them easy to read."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.plugins.lab.ranges import Linear, Ranges, StepWork
from camshaft.plugins.lab.rates import Rates, measured_rates
from camshaft.plugins.lab.roofline import AttentionShape, Limit, Shape, limits

RATES = Rates(copy_bytes_s=1e6, read_bytes_s=0.5e6, gemm_flop_s=1e9)  # a byte a microsecond


def shape(window: int = 0) -> Shape:
    group = AttentionShape(layers=2, heads=4, dims=16, window=window, token_bytes=100.0)
    return Shape(hidden=8, layers=2, vocab=50, itemsize=2, attention=(group,))


def step(lengths: list[int], context: list[int], rows: int) -> StepWork:
    return StepWork(np.array(lengths, np.int32), np.array(context, np.int32), rows)


def of(*steps: StepWork, window: int = 0, rates: Rates = RATES) -> dict[str, Limit]:
    linears = {
        "qkv": [Linear(480, 10, 24), Linear(480, 10, 24)],
        "gate_up": [Linear(640, 10, 32)],
        "head": [Linear(1000, 10, 50)],
        "never": [Linear(77)],
    }
    return limits(Ranges(linears, list(steps)), shape(window), rates)


def test_a_linear_reads_its_weights_once_a_step_and_each_row() -> None:
    found = of(step([1, 1, 1], [5, 5, 5], rows=3), step([1], [5], rows=0))
    assert found["qkv"].us == 2 * (480 + 3 * 34 * 2) + 2 * (480 + 34 * 2)
    assert found["head"].us == 1000 + 3 * 60 * 2  # only in the step that has rows
    assert (found["qkv"].bound, "never" in found) == ("memory", False)


def test_where_operations_take_longer_they_are_the_limit() -> None:
    slow = Rates(1e6, 1e6, gemm_flop_s=1e6)
    one = of(step([1], [5], rows=1), rates=slow)
    assert (one["gate_up"].us, one["gate_up"].bound) == (640 + 42 * 2, "memory")
    many = of(step([1] * 8, [5] * 8, rows=8), rates=slow)
    assert (many["gate_up"].us, many["gate_up"].bound) == (8 * 2 * 10 * 32, "compute")


def test_decoding_reads_the_keys_and_values_of_every_request() -> None:
    found = of(step([1, 1], [9, 19], rows=2))
    assert found["attention decode"].us == (10 + 20) * 100 + 2 * 4 * 16 * 2 * 2
    assert "attention prefill" not in found


def test_a_prompt_sees_the_keys_before_each_of_its_tokens() -> None:
    slow = Rates(1e12, 1e12, gemm_flop_s=1e6)
    found = of(step([3], [2], rows=1), rates=slow)
    assert found["attention prefill"].us == 2 * 4 * 16 * (3 + 4 + 5) * 2


def test_a_window_limits_both() -> None:
    found = of(step([1, 1], [9, 1], rows=2), window=4)
    assert found["attention decode"].us == (4 + 2) * 100 + 2 * 4 * 16 * 2 * 2
    slow = Rates(1e12, 1e12, gemm_flop_s=1e6)
    prompt = of(step([3], [2], rows=1), window=4, rates=slow)
    assert prompt["attention prefill"].us == 2 * 4 * 16 * (3 + 4 + 4) * 2


def test_small_operations_move_their_rows() -> None:
    found = of(step([4], [0], rows=1))
    moved = {name: found[name].us for name in ("norm", "embed", "activation", "rope", "sampling")}
    assert moved == {
        "norm": 5 * 4 * 4 * 8 * 2,
        "embed": 2 * 4 * 8 * 2,
        "activation": 4 * 1.5 * 32 * 2,
        "rope": 4 * 2 * 48 * 2,
        "sampling": 50 * 2,
    }


def test_a_device_is_measured() -> None:
    rates = measured_rates("cpu")
    assert min(rates.copy_bytes_s, rates.read_bytes_s) > 1e8
    assert rates.gemm_flop_s > 1e8
    assert rates.bytes_s == pytest.approx(max(rates.copy_bytes_s, rates.read_bytes_s))
