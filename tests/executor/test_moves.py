"""Which step waits for which load: seen by what is recorded and joined in which stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from camshaft.contracts.moves import Moved, PageMove
from camshaft.executor.moves import PageMoves
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.step import Ragged, Step, int32
from camshaft.testing.steps import StepDriver
from camshaft.testing.toy import compose_toy
from tests.executor.test_transfer import LAYERS, PLAIN, Streams, group_of


def moves_of(groups: int = 1) -> tuple[PageMoves, Streams]:
    hardware = Streams()
    return PageMoves([group_of(PLAIN) for _ in range(groups)], hardware, ratio=1), hardware


def load(moves: PageMoves, ticket: int, *pages: int, group: int = 0) -> None:
    moves.move([], [PageMove(ticket, group, pages, moves.tray(group, len(pages)))])


def step_with(*pages: int, group: int = 0) -> Step:
    """A step that puts pages into the table of slot 0."""
    return Step(
        write_group=int32([group]),
        write_slot=int32([0]),
        write_first=int32([0]),
        write_pages=Ragged.of([pages]),
    )


def joined(hardware: Streams) -> int:
    """How often the stream of the steps was told to wait, since the last call."""
    count = sum(what == "join" and where == "steps" for what, _, where in hardware.log)
    hardware.log.clear()
    return count


def test_a_step_waits_for_the_pages_that_it_is_given_layer_by_layer() -> None:
    moves, hardware = moves_of()
    load(moves, 1, 3, 4)
    awaited = moves.awaited(step_with(7, 4))
    assert awaited is not None
    counts = []
    for layer in LAYERS:
        awaited.join(0, layer)
        counts.append(joined(hardware))
    awaited.join_all()
    assert counts == [1, 1, 1]
    assert joined(hardware) == 0


def test_other_steps_do_not_wait() -> None:
    moves, _ = moves_of(groups=2)
    load(moves, 1, 3, 4, group=1)
    assert moves.awaited(step_with(3, 4, group=0)) is None
    assert moves.awaited(step_with(5, 6, group=1)) is None
    assert moves.awaited(Step()) is None
    assert moves.awaited(step_with(3, group=1)) is not None


def test_a_load_is_waited_for_once() -> None:
    moves, _ = moves_of()
    load(moves, 1, 3)
    assert moves.awaited(step_with(3)) is not None
    assert moves.awaited(step_with(3)) is None


def test_a_load_that_has_ended_is_not_waited_for() -> None:
    moves, hardware = moves_of()
    load(moves, 1, 3)
    assert moves.moved() == []
    hardware.is_done = True
    assert moves.awaited(step_with(3)) is None
    assert moves.moved() == [Moved(1)]


@pytest.mark.parametrize("field", ["copies", "fresh"])
def test_a_step_that_copies_or_wipes_loaded_pages_waits_too(field: str) -> None:
    moves, _ = moves_of()
    load(moves, 1, 3)
    touches = np.array([[0, 3, 5]] if field == "copies" else [[0, 3]], dtype=np.int32)
    assert moves.awaited(Step(**{field: touches})) is not None  # type: ignore[arg-type]


def test_pages_that_are_being_loaded_are_exported_behind_the_load() -> None:
    moves, hardware = moves_of()
    load(moves, 1, 3)
    moves.move([PageMove(2, 0, (5,), moves.tray(0, 1))], [])
    assert joined(hardware) == 0
    moves.move([PageMove(3, 0, (3,), moves.tray(0, 1))], [])
    assert joined(hardware) == len(LAYERS)


def test_an_export_without_room_on_the_device_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, hardware = moves_of()

    def full(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError

    trays = [moves.tray(0, 1) for _ in range(2)]
    with monkeypatch.context() as device:
        device.setattr(torch, "empty", full)
        moves.move([PageMove(1, 0, (3,), trays[0])], [PageMove(2, 0, (4,), trays[1])])
    hardware.is_done = True
    assert moves.moved() == [Moved(1, ok=False), Moved(2)]


def test_after_a_load_that_failed_nothing_of_its_call_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves, hardware = moves_of()
    trays = [moves.tray(0, 1) for _ in range(3)]

    def broken(*given: object) -> None:
        raise RuntimeError("no such luck")

    with monkeypatch.context() as device:
        device.setattr(moves._transfers[0], "load", broken)
        with pytest.raises(RuntimeError, match="no such luck"):
            moves.move([PageMove(1, 0, (3,), trays[0])], [PageMove(2, 0, (4,), trays[1])])
    assert ("wait", 1, "steps") in hardware.log  # for the export, whose tray goes back
    assert moves.moved() == []
    assert moves.awaited(step_with(4)) is None


@pytest.mark.parametrize("given", [(1, 2, 3), (4, 5, 6)], ids=["its pages", "others"])
def test_each_layer_of_a_step_waits_just_before_it_attends(
    given: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = compose_toy().engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    hardware = Streams()
    moves = PageMoves(executor.parts.groups, hardware, ratio=1)
    monkeypatch.setattr(executor, "_moves", moves)
    attend = executor._attend_slice

    def noted(layer: Any, *rest: Any) -> None:
        hardware.log.append(("attend", layer.index, "steps"))
        attend(layer, *rest)

    monkeypatch.setattr(executor, "_attend_slice", noted)
    load(moves, 1, 1, 2)
    hardware.log.clear()
    drive = StepDriver(executor)
    drive.launch((drive.open(range(1, 11), 0, given, cached=8, used=2), 2))
    waits = [what for what, _, _ in hardware.log]
    assert waits == (["join", "attend"] * 2 if given == (1, 2, 3) else ["attend"] * 2)
