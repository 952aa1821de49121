"""Parts of a step, on a CPU: one after the other, and with devices that only note what they do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from camshaft.contracts.moves import PageMove
from camshaft.executor.graphs import DecodeGraphs
from camshaft.executor.part_of_step import nano_batches, part_of_step
from camshaft.executor.pieces import LayerGraphs
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.request import RequestOutput
from camshaft.step import FROM_DEVICE, Step, int32
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.steps import StepDriver, row_masks
from camshaft.testing.toy import HYBRID, LLAMA, VOCAB, compose_toy
from tests.executor.test_transfer import Streams

CUT = {"use": "nano_batch", "minimum_tokens": 2, "step_tokens": 20}
BY_PHASE = {**CUT, "by": "phase"}


def step_of_three() -> Step:
    return Step(
        id=4,
        decode_requests=2,
        slots=int32([5, 1, 3]),
        starts=int32([0, 1, 2, 6]),
        context=int32([9, 8, 0]),
        drafts=int32([0, 0, 0]),
        rows=int32([2, 2, 1]),
        tokens=int32([FROM_DEVICE, 70, 71, 72, 73, 74]),
        nano_batch=int32([1, 0, 1]),
    )


def test_a_part_is_a_step_of_its_own_requests() -> None:
    part = part_of_step(step_of_three(), int32([0, 2]))
    assert (part.id, part.decode_requests) == (4, 1)
    assert part.slots.tolist() == [5, 3]
    assert part.starts.tolist() == [0, 1, 5]
    assert part.context.tolist() == [9, 0]
    assert part.rows.tolist() == [2, 1]
    assert part.tokens.tolist() == [FROM_DEVICE, 71, 72, 73, 74]
    assert not len(part.nano_batch)


def test_parts_come_by_their_numbers() -> None:
    assert [part.slots.tolist() for part in nano_batches(step_of_three())] == [[1], [5, 3]]


def executor_of(composed: Any) -> TorchExecutor:
    executor = composed.engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    return executor


def answers(composed: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Some begin late, so that prompts come beside decodes; some want logprobs."""
    engine, results = composed.engine, dict[str, list[RequestOutput]]()
    for count in (1, 7, 30, 45):
        prompt = [(7 * count + place) % 250 for place in range(count)]
        wants = {"logprobs": 2} if count % 2 else {}
        engine.submit(make_request(f"p{count}", prompt, 9, ignore_eos=True, **wants))
        for _ in range(2):
            for one in engine.step():
                results.setdefault(one.id, []).append(one)
    for one in run_to_end(engine).values():
        results.setdefault(one.id, []).append(one)
    return {
        name: (
            tuple(token for one in parts for token in one.token_ids),
            [entry for one in parts for entry in one.logprobs],
        )
        for name, parts in results.items()
    }


@pytest.mark.parametrize("scheduler", [CUT, {**CUT, "shares": [1, 1, 1]}, BY_PHASE])
@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_steps_in_parts_give_the_answers_of_whole_steps(
    model: dict[str, Any], scheduler: dict[str, Any]
) -> None:
    wanted = answers(compose_toy(model, {"scheduler": {"step_tokens": 20}}))
    composed = compose_toy(model, {"scheduler": scheduler})
    assert answers(composed) == wanted
    executor, stats = executor_of(composed), composed.engine.stats
    assert executor.side_by_side.runs == stats.nano_steps > 5


@pytest.mark.usefixtures("recordable")
@pytest.mark.parametrize("scheduler", [CUT, BY_PHASE])
def test_parts_are_replayed_from_recordings_of_their_own(scheduler: dict[str, Any]) -> None:
    wanted = answers(compose_toy(LLAMA, {"scheduler": {"step_tokens": 20}}))
    composed = compose_toy(LLAMA, {"scheduler": scheduler})
    executor = executor_of(composed)
    sampler: Any = executor.parts.sampler
    sampler.recordable = lambda slots: None
    executor.graphs = DecodeGraphs(executor, 8, composed.memory.room)
    executor.pieces = LayerGraphs(executor, 20)
    assert answers(composed) == wanted
    parts = executor.side_by_side
    assert parts.runs == composed.engine.stats.nano_steps
    lanes = {one.lane for one in parts._graphs.values()} | {
        one.lane for one in parts._pieces.values()
    }
    assert lanes == {1}
    assert parts._graphs[1].replays >= 3
    assert executor.pieces.replays >= 3


def test_logits_come_back_in_the_order_of_the_step() -> None:
    executor = executor_of(compose_toy())
    drive = StepDriver(executor)
    states = [drive.open([9, number], number, [1 + number]) for number in range(4)]
    masks = row_masks([[10 + number] for number in range(4)], VOCAB)
    shares = [(state, 2) for state in states]
    step = drive.launch(*shares, masks=masks, nano_batch=[2, 0, 1, 0])
    assert drive.outputs[step].tokens.tolist() == [[10], [11], [12], [13]]


class Log(Streams):
    """Notes streams by their numbers."""

    @contextmanager
    def stream(self, number=0):
        before, self.current = self.current, f"stream {number}"
        try:
            yield
        finally:
            self.current = before


def logged(monkeypatch: pytest.MonkeyPatch) -> tuple[TorchExecutor, StepDriver, Log]:
    executor, log = executor_of(compose_toy()), Log()
    monkeypatch.setattr(executor.parts, "hardware", log)
    return executor, StepDriver(executor), log


def test_parts_begin_behind_the_step_before_and_meet_before_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, drive, log = logged(monkeypatch)
    where: list[tuple[str, int, str]] = []
    attend, logits = executor.attend, executor.parts.model.logits

    def noted_attend(layer: Any, qkv: Any, *rest: Any) -> None:
        where.append((f"layer {layer.index}", len(qkv), log.current))
        attend(layer, qkv, *rest)

    def noted_logits(hidden: Any, context: Any) -> torch.Tensor:
        where.append(("head", len(hidden), log.current))
        return logits(hidden, context)

    monkeypatch.setattr(executor, "attend", noted_attend)
    monkeypatch.setattr(executor.parts.model, "logits", noted_logits)
    small, large = drive.open([1, 2], 0, [1]), drive.open([3, 4, 5], 1, [2])
    drive.launch((small, 2), (large, 3), nano_batch=[0, 1])
    assert [entry for entry in log.log if entry[0] != "wait"][:5] == [
        ("record", 0, "steps"),
        ("join", 0, "steps"),
        ("join", 0, "stream 1"),
        ("record", 1, "stream 1"),
        ("join", 1, "steps"),
    ]
    assert where == [
        ("layer 0", 2, "stream 1"),
        ("layer 0", 3, "steps"),
        ("layer 1", 2, "stream 1"),
        ("layer 1", 3, "steps"),
        ("head", 2, "steps"),
    ]


def test_streams_meet_also_when_a_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, drive, log = logged(monkeypatch)
    state = drive.open([1, 2], 0, [1])
    other = drive.open([3, 4, 5], 1, [2])

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(executor, "attend", fail)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        drive.launch((state, 2), (other, 3), nano_batch=[0, 1])
    assert log.log[-2:] == [("record", 1, "stream 1"), ("join", 1, "steps")]


def test_pages_that_come_from_the_host_are_there_before_any_part_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, drive, log = logged(monkeypatch)
    executor._moves._hardware = log
    executor.move([], [PageMove(1, 0, (9,), executor.tray(0, 1))])
    log.log.clear()
    states = [drive.open([1, 2], 0, [9]), drive.open([3, 4, 5], 1, [2])]
    drive.launch((states[0], 2), (states[1], 3), nano_batch=[0, 1])
    kinds = [(what, where) for what, _, where in log.log]
    assert kinds[:3] == [("join", "steps"), ("join", "steps"), ("record", "steps")]


def test_a_backend_with_one_plan_at_a_time_runs_parts_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = answers(compose_toy(LLAMA, {"scheduler": {"step_tokens": 20}}))
    monkeypatch.setattr(ReferenceAttention, "side_by_side", False)
    composed = compose_toy(LLAMA, {"scheduler": CUT})
    assert answers(composed) == wanted
    assert executor_of(composed).side_by_side.runs == 0
    assert composed.engine.stats.nano_steps > 5
