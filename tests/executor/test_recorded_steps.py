"""Decode steps recorded on the processor, operation by operation, against steps that run anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from camshaft.compose import Composed
from camshaft.contracts.attention import AttentionMeta, GraphLevel
from camshaft.contracts.hardware import Outputs, Recording
from camshaft.native.arena import Arena
from camshaft.native.tape import record
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy
from tests.executor.test_graphs import answers, modular_answers, with_graphs

_forward = ReferenceAttention.forward
_plan = ReferenceAttention.plan


def plan(self: Any, meta: AttentionMeta, *, capture: bool = False) -> Any:
    """Decode steps need none."""
    if meta.decode_requests == len(meta.host_context):
        return None
    return _plan(self, meta, capture=capture)


def attend_all(
    self: Any, layer: Any, q: Any, k: Any, v: Any, kv: Any, meta: AttentionMeta, out: Any
) -> None:
    """Attend for decoding requests over whole page tables; nothing is read on the host."""
    if meta.plan is not None:
        _forward(self, layer, q, k, v, kv, meta, out)
        return
    self.pages.write(kv, self.pages.writes(meta), k, v)
    keys, values = self.pages.read(kv, self.pages.reads(meta.page_table.long()), torch.float32)
    place = torch.arange(keys.shape[2])
    unseen = place > meta.context[:, None]
    if layer.window:
        unseen |= place <= meta.context[:, None] - layer.window
    rows = q.float().unflatten(1, (layer.kv_heads, -1))
    scores = rows @ keys.transpose(-1, -2) * layer.scale
    if layer.soft_cap:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    scores = scores.masked_fill(unseen[:, None, None], float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(layer.kv_heads, -1, 1).expand(len(rows), -1, -1, -1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(-1)[..., : keys.shape[2]]
    out.copy_((weights @ values).flatten(1, 2))


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Let the reference attention be recorded, and count what is."""
    made: list[Recording] = []
    arena = Arena()

    def capture(self: CpuBackend, function: Callable[[], Outputs], lane: int = 0) -> Recording:
        made.append(record(function, arena))
        return made[-1]

    monkeypatch.setattr(CpuBackend, "capture", capture)
    monkeypatch.setattr(ReferenceAttention, "graph_level", GraphLevel.SINGLE_TOKEN)
    monkeypatch.setattr(ReferenceAttention, "needs_zeroed_pages", True)
    monkeypatch.setattr(ReferenceAttention, "plan", plan)
    monkeypatch.setattr(ReferenceAttention, "forward", attend_all)
    return made


def eager(model: dict[str, Any] = LLAMA, **changes: Any) -> Composed:
    return compose_toy(model, {**changes, "engine": {"graphs": False}})


@pytest.mark.parametrize("choice", [None, "greedy"], ids=["logits", "choice"])
@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_recorded_steps_give_the_tokens_of_steps_that_run_anew(
    model: dict[str, Any], choice: str | None, recordings: list[Recording]
) -> None:
    wanted = answers(eager(model))
    composed = compose_toy(model)
    graphs = with_graphs(composed, choice)
    assert answers(composed) == wanted
    assert graphs.replays > len(recordings) > 0


def test_recorded_steps_place_tokens_behind_the_modules_of_their_request() -> None:
    changes = {"cache": {"use": "modular"}}
    wanted = modular_answers(eager(**changes))
    composed = compose_toy(changes=changes)
    with_graphs(composed, "greedy")
    assert modular_answers(composed) == wanted
    assert answers(composed) == answers(eager())


def test_a_composed_engine_records_steps_of_every_number_and_no_prompts() -> None:
    composed = compose_toy(changes={"engine": {"graphs": True}})
    executor: Any = composed.engine.parts.executor
    assert executor.graphs.sizes == [1, 2, 3, 4, 5, 6, 7, 8]
    assert executor.pieces is None
    assert answers(composed) == answers(eager())
    assert executor.graphs.replays > 0


def test_graphs_can_be_recorded_before_the_first_request(recordings: list[Recording]) -> None:
    composed = compose_toy(changes={"engine": {"warm_up": "graphs"}})
    before = len(recordings)
    assert before >= 8
    assert answers(composed) == answers(eager())
    assert len(recordings) == before
