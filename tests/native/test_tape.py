"""Recordings of torch's operations and compiled ones, against running the function anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft import native
from camshaft.errors import DeviceError
from camshaft.native.arena import Arena
from camshaft.native.linear import Form, pack
from camshaft.native.linear import linear as compiled_linear
from camshaft.native.tape import Recorded, record

Function = Callable[[], tuple[torch.Tensor | None, ...]]


@pytest.fixture(scope="module")
def _team():
    if native.reasons():
        pytest.skip("; ".join(native.reasons()))
    native.open_team(2, spins=100)
    yield
    native.close_team()


def linear() -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled linear [32] -> [16] with weights of 1, into new memory."""
    ones, form = torch.ones(16, 1), Form(bits=8, group=32, is_wide=True)
    weight = pack(form, torch.ones(16, 32, dtype=torch.uint8), ones, 0 * ones)

    def run(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((len(x), 16))
        compiled_linear(x, weight, None, out)
        return out

    return run


def recorded(function: Function, arena: Arena | None = None) -> Recorded:
    return record(function, arena or Arena())


def check(function: Function, inputs: list[torch.Tensor], times: int = 3) -> Recorded:
    """Replays on changed inputs give the bits of running anew."""
    recording = recorded(function)
    for number in range(times):
        for one in inputs:
            one.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(number)))
        wanted = [None if one is None else one.clone() for one in function()]
        for mine, theirs in zip(recording.replay(), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    return recording


UNARY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 2,
    lambda x: x.t().contiguous(),
    lambda x: x.softmax(0),
    lambda x: x.to(torch.bfloat16).float(),
    lambda x: x.sort(dim=0).values,
    lambda x: x.clone().add_(1),
    lambda x: x + torch.tensor([1.5]),
    lambda x: torch.zeros(4, 4).add_(x),
    lambda x: x.reshape(2, 8).view(4, 4)[:, torch.tensor([3, 1, 0, 2])],
    lambda x: torch.cat([x[:2], x[2:] - 1]),
    lambda x: torch.nn.functional.linear(x, torch.eye(4) + x),
    lambda x: x.new_full((4, 4), 3.0) / x.sum(dim=1, keepdim=True),
    lambda x: x.index_put((x.argmax(dim=0),), torch.ones(4)),
    lambda x: torch.empty_like(x).copy_(x).t_().neg(),
    lambda x: x.split(2)[1].repeat(2, 1),
    lambda x: torch.topk(x, 4).values.cumsum(1),
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(UNARY) - 1), st.integers(0, 9)), min_size=1, max_size=8)
)
def test_replays_of_random_functions_equal_running_anew(plan: list[tuple[int, int]]) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)

    def function() -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for number, source in plan:
            values.append(UNARY[number](values[source % len(values)]))
            if source % 3 == 0:  # memory of what was dropped is used again
                del values[2:-1]
        return tuple(values[2:])

    check(function, [x, y])


@pytest.mark.usefixtures("_team")
def test_compiled_operations_run_between_torchs_in_their_order() -> None:
    x, run = torch.randn(3, 32), linear()

    def function() -> tuple[torch.Tensor, ...]:
        first = run(x * 2)
        again = run(torch.cat([first, first], dim=1) + 1)
        return run(torch.cat([again, first], dim=1)), again.sum()[None]

    recording = check(function, [x])
    assert recording.compiled == 3


@pytest.mark.usefixtures("_team")
def test_a_row_of_compiled_operations_is_one_call() -> None:
    x, run = torch.randn(3, 32), linear()

    def function() -> tuple[torch.Tensor, ...]:
        return run(x), run(x.view(3, 32)), run(x)[1:]

    recording = check(function, [x])
    assert (recording.compiled, recording.calls) == (3, 1)


def _recording_of_its_own() -> Recorded:
    x, run = torch.ones(1, 32), linear()
    return recorded(lambda: (run(x),))


@pytest.mark.usefixtures("_team")
def test_what_a_compiled_operation_reads_lives_as_long_as_its_recording() -> None:
    recording = _recording_of_its_own()
    recording.share()
    torch.full((1, 32), 7.0)
    (result,) = recording.replay()
    assert result is not None
    assert result.tolist() == [[pytest.approx(32.0)] * 16]


def test_buffers_that_a_function_fills_are_filled_again() -> None:
    x, total = torch.tensor([1.0]), torch.zeros(1)

    def function() -> tuple[None]:
        total.add_(x)
        torch.mul(total, 2, out=total)
        return (None,)

    recording = recorded(function)
    x.fill_(3.0)
    assert recording.replay() == (None,)
    assert total.tolist() == [10.0]


def test_results_are_the_same_tensors_at_each_replay() -> None:
    x = torch.tensor([1.0])
    recording = recorded(lambda: (x + 1,))
    first = recording.replay()[0]
    x.fill_(5.0)
    assert recording.replay()[0] is first
    assert first is not None
    assert first.tolist() == [6.0]


def test_dropped_results_share_memory_within_and_between_recordings() -> None:
    x, arena = torch.zeros(1024), Arena()

    def function() -> tuple[torch.Tensor, ...]:
        value = x
        for _ in range(50):
            value = value + 1
        return (value,)

    one = recorded(function, arena)
    assert arena.bytes == 2 * 4096
    one.share()
    other = recorded(function, arena)
    other.share()
    assert arena.bytes == 2 * 4096
    (result,) = one.replay()
    assert result is not None
    assert result.tolist() == [50.0] * 1024


def test_results_that_are_not_shared_stay_as_they_are() -> None:
    x, arena = torch.zeros(16), Arena()
    one = recorded(lambda: (x + 1,), arena)
    other = recorded(lambda: (x + 2,), arena)
    results = (*one.replay(), *other.replay())
    assert [None if result is None else result[0].item() for result in results] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"),
        (lambda x: x.tolist(), "Tensor.tolist"),
        (lambda x: x.numpy(), "Tensor.numpy"),
        (lambda x: x.nonzero(), "aten.nonzero.default"),
        (lambda x: x[x > 0], "aten.index.Tensor.*mask"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.to("meta"), "another device, meta"),
        (lambda x: x.clone().resize_(9), "resize_"),
        (lambda x: torch.add(x, 1, out=torch.empty(0)), "changes the size"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(
    function: Callable[[torch.Tensor], Any], names: str
) -> None:
    x = torch.ones(4)
    with pytest.raises(DeviceError, match=rf"{names}.*set engine\.graphs: false"):
        recorded(lambda: (function(x),))
    assert recorded(lambda: (x + 1,)).calls == 1  # nothing is left of the attempt


def test_random_numbers_are_drawn_anew() -> None:
    recording = recorded(lambda: (torch.rand(8),))
    first = recording.replay()[0]
    assert first is not None
    before = first.tolist()
    recording.replay()
    assert first.tolist() != before
