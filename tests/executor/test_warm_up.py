"""Warming up runs every kind of step and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.compose import Composed
from camshaft.errors import DeviceError
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.executor.warm_steps import largest_steps
from camshaft.executor.warm_up import warm_up
from camshaft.step import Step
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy

POISONED = {"engine": {"deterministic": True, "poison": True, "debug": True}}


def warmed(model: Any = LLAMA, **arguments: Any) -> tuple[Composed, TorchExecutor]:
    composed = compose_toy(model, POISONED)
    executor = composed.engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    limits = {"slots": 8, "step_tokens": 64, "room": composed.info.room}
    warm_up(executor, **{**limits, **arguments})
    return composed, executor


@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_nothing_of_it_is_left_on_the_device(model: Any) -> None:
    _, executor = warmed(model)
    state = executor.parts.state
    assert not state.lengths.any()
    assert not state.last_token.any()
    tensors = [one for group in executor.parts.groups for one in group.all_fields()]
    assert all(not one.any() for one in tensors)


def test_answers_are_those_of_an_engine_that_was_not_warmed_up() -> None:
    prompts = {"a": [5, 6, 7], "b": list(range(40)), "c": [9]}
    answers = []
    for composed in (compose_toy(HYBRID, POISONED), warmed(HYBRID)[0]):
        for name, prompt in prompts.items():
            composed.engine.submit(make_request(name, prompt, 6))
        answers.append({name: one.token_ids for name, one in run_to_end(composed.engine).items()})
    assert answers[0] == answers[1]


def test_it_runs_the_largest_step_and_every_kind_of_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, int, int]] = []
    launch = TorchExecutor.launch

    def note(self: TorchExecutor, step: Step) -> None:
        seen.append((len(step.slots), step.decode_requests, int(step.starts[-1])))
        launch(self, step)

    monkeypatch.setattr(TorchExecutor, "launch", note)
    warmed(decode_sizes=[4, 9])
    assert seen[0] == (1, 0, 64)
    assert {(8, 0, 64), (1, 1, 1), (1, 0, 16), (1, 0, 17), (2, 1, 18)} <= set(seen)
    assert {one[0] for one in seen if one[0] == one[1]} == {1, 2, 4, 8}


def test_prompts_no_longer_than_a_sequence_may_be_fill_the_largest_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[int]] = []
    launch = TorchExecutor.launch

    def note(self: TorchExecutor, step: Step) -> None:
        seen.append((step.starts[1:] - step.starts[:-1]).tolist())
        launch(self, step)

    monkeypatch.setattr(TorchExecutor, "launch", note)
    warmed(room=31)
    assert seen[0] == [30, 30, 4]
    assert max(max(lengths) for lengths in seen) == 30


def test_the_largest_steps_have_one_size() -> None:
    sizes = [(len(one.slots), int(one.starts[-1])) for one in largest_steps(1024, 16640, 20480)]
    assert sizes == [(1, 16640), (1024, 16640)]
    lengths = list(largest_steps(3, 32, 40))[1].starts
    assert lengths.tolist() == [0, 11, 22, 32]


def test_a_step_that_does_not_fit_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: TorchExecutor, step: Step) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TorchExecutor, "launch", full)
    with pytest.raises(DeviceError, match=r"64 tokens does not fit.*lower cache\.memory"):
        warmed()
