"""Decode steps over fixed buffers, on a CPU: the replay runs the function that a device records."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from camshaft.compose import Composed
from camshaft.contracts.model import Model
from camshaft.contracts.moves import PageMove
from camshaft.executor.graphs import DecodeGraphs, padded_sizes
from camshaft.executor.moves import PageMoves
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.facts import Capability
from camshaft.plugins.hardware.components import CpuSettings
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.request import TokenSpan
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.steps import StepDriver
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool
from tests.executor.test_transfer import Streams

PROMPTS = {
    "short": [1],
    "long": list(range(2, 60)),
    "page": [9, 8, 7, 6],
    "again": list(range(2, 40)),
}


class Chosen(NamedTuple):
    tokens: torch.Tensor
    finite: torch.Tensor


def record_greedily(key: Hashable, logits: torch.Tensor, slots: torch.Tensor) -> Chosen:
    assert key == "greedy"
    return Chosen(logits.argmax(dim=1), torch.isfinite(logits.amax(dim=1)))


def executor_of(composed: Composed) -> TorchExecutor:
    executor = composed.engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    return executor


def with_graphs(composed: Composed, choice: str | None) -> DecodeGraphs:
    executor = executor_of(composed)
    assert DecodeGraphs.allowed(executor)
    graphs = executor.graphs = DecodeGraphs(executor, 8, composed.memory.room)
    sampler: Any = executor.parts.sampler
    sampler.recordable = lambda slots: choice
    sampler.record = record_greedily
    return graphs


def answers(composed: Composed) -> dict[str, tuple[int, ...]]:
    for name, prompt in PROMPTS.items():
        composed.engine.submit(make_request(name, prompt, 12 + len(prompt) % 5, ignore_eos=True))
    return {name: tuple(one.token_ids) for name, one in run_to_end(composed.engine).items()}


@pytest.mark.usefixtures("recordable")
@pytest.mark.parametrize("choice", [None, "greedy"], ids=["logits", "choice"])
@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_replayed_steps_give_the_tokens_of_eager_steps(
    model: dict[str, Any], choice: str | None
) -> None:
    wanted = answers(compose_toy(model))
    composed = compose_toy(model)
    graphs = with_graphs(composed, choice)
    assert answers(composed) == wanted
    assert graphs.replays >= 12


def test_eager_steps_choose_in_the_recorded_form_too() -> None:
    wanted = answers(compose_toy())
    composed = compose_toy()
    sampler: Any = executor_of(composed).parts.sampler
    sampler.recordable = lambda slots: "greedy"
    sampler.record = record_greedily
    sampler.sample = None
    assert answers(composed) == wanted


@pytest.mark.usefixtures("recordable")
def test_replayed_steps_survive_preemption() -> None:
    wanted = answers(compose_toy())
    composed = compose_toy(changes={"cache": {"memory": pool(22)}, "engine": {"poison": True}})
    with_graphs(composed, "greedy")
    assert answers(composed) == wanted
    assert composed.engine.stats.preemptions["no_space"] > 0


def modular_answers(composed: Composed) -> dict[str, tuple[int, ...]]:
    """Requests behind modules with gaps between positions, beside some without."""
    modules = TokenSpan(list(range(60, 72)), 8), TokenSpan(list(range(90, 98)), 200)
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        for kind in ("plain", "modular"):
            request = make_request(f"{kind} {name}", prompt, 12 + number, ignore_eos=True)
            if kind == "modular":
                request.spans = (*modules[number % 2 :], *request.spans)
            composed.engine.submit(request)
    return {name: tuple(one.token_ids) for name, one in run_to_end(composed.engine).items()}


@pytest.mark.usefixtures("recordable")
def test_replayed_steps_place_tokens_behind_the_modules_of_their_request() -> None:
    changes = {"cache": {"use": "modular"}}
    wanted = modular_answers(compose_toy(changes=changes))
    composed = compose_toy(changes=changes)
    graphs = with_graphs(composed, "greedy")
    assert modular_answers(composed) == wanted
    assert {shifted for *_, shifted in graphs._recorded} == {True}
    assert answers(composed) == answers(compose_toy())  # slots that had offsets have none now
    assert {shifted for *_, shifted in graphs._recorded} == {True, False}


@pytest.mark.usefixtures("recordable")
def test_a_model_that_may_not_be_recorded_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    device = frozenset({Capability.GRAPHS, Capability.STEP_GRAPHS})
    facts = replace(CpuBackend(CpuSettings()).facts(), capabilities=device)
    monkeypatch.setattr(CpuBackend, "facts", lambda self: facts)
    wanted = answers(compose_toy(changes={"engine": {"graphs": False}}))
    for may in (True, False):
        monkeypatch.setattr(Model, "recordable", may)
        composed = compose_toy()
        executor = executor_of(composed)
        assert (executor.graphs is not None, executor.pieces is not None) == (may, may)
        assert answers(composed) == wanted


@pytest.mark.usefixtures("recordable")
def test_a_request_without_finite_logits_ends_alone() -> None:
    composed = compose_toy()
    graphs = with_graphs(composed, "greedy")
    begin = graphs.begin

    def spoiled(slots: Any, choice: Hashable, shared: Any) -> Callable[[], torch.Tensor]:
        end = begin(slots, choice, shared)

        def ended() -> torch.Tensor:
            result = end().clone()
            if len(slots) == 2:
                result[1] = -1
            return result

        return ended

    graphs.begin = spoiled  # type: ignore[method-assign]
    for name in ("short", "page"):
        composed.engine.submit(make_request(name, PROMPTS[name], 6, ignore_eos=True))
    finishes = [one.finish for one in run_to_end(composed.engine).values()]
    assert sorted(map(str, finishes)) == ["error", "length"]


@pytest.mark.usefixtures("recordable")
def test_a_recorded_step_runs_beside_the_host_until_it_is_completed() -> None:
    composed = compose_toy()
    with_graphs(composed, "greedy")
    executor = executor_of(composed)
    composed.engine.submit(make_request("a", PROMPTS["short"], 6, ignore_eos=True))
    beside, published = 0, []
    while composed.engine.states:
        published += composed.engine.step()
        if not executor.immediate:
            beside += 1
            assert executor.complete()
        assert executor.immediate
        assert not executor.complete()
    assert beside >= 5
    tokens = [token for one in published for token in one.token_ids]
    assert tokens == list(answers(compose_toy())["short"][:6])


@pytest.mark.usefixtures("recordable")
def test_slots_are_sent_when_they_change_only(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose_toy()
    with_graphs(composed, "greedy")
    sent = []
    from camshaft.executor import graphs
    from camshaft.executor.upload import to_device as real

    def to_device(values: Any, device: str) -> torch.Tensor:
        sent.append(np.array(values))
        return real(values, device)

    monkeypatch.setattr(graphs, "to_device", to_device)
    composed.engine.submit(make_request("one", [1, 2, 3], 20, ignore_eos=True))
    run_to_end(composed.engine)
    assert [len(values) for values in sent] == [1, 1]  # to record, and for the first replay


@pytest.mark.usefixtures("recordable")
def test_a_replay_waits_only_for_a_page_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose_toy()
    executor, graphs, hardware = executor_of(composed), with_graphs(composed, None), Streams()
    monkeypatch.setattr(executor, "_moves", PageMoves(executor.parts.groups, hardware, ratio=1))
    drive = StepDriver(executor, depth=3)  # so that tokens are on the device only
    state = drive.open([5, 6, 7], 0, [1])
    drive.launch((state, 3))
    executor.move([], [PageMove(1, 0, (9,), executor.tray(0, 1))])
    hardware.log.clear()
    drive.launch((state, 1))
    assert hardware.log == []
    drive.grow(state, [9])
    drive.launch((state, 1))
    assert [what for what, _, _ in hardware.log] == ["join", "join"]  # both layers, at once
    assert graphs.replays == 2


def test_padded_sizes_end_with_the_largest_step() -> None:
    assert padded_sizes(1) == [1]
    assert padded_sizes(10) == [1, 2, 4, 8, 10]
    assert padded_sizes(1024)[-3:] == [960, 992, 1024]


def test_where_padding_costs_as_much_as_requests_small_steps_are_exact() -> None:
    assert padded_sizes(8, exact=6) == [1, 2, 3, 4, 5, 6, 8]
    assert padded_sizes(3, exact=32) == [1, 2, 3]
