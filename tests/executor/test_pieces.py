"""Steps in recorded pieces, on a CPU: a replay runs the function that a device records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.contracts.hardware import Outputs
from camshaft.executor.pieces import LayerGraphs, token_sizes
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.plugins.hardware.cpu import Repeated
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy


def answers(model: dict[str, Any], *, pieces: bool) -> tuple[dict[str, tuple[int, ...]], Any]:
    engine = compose_toy(model, {"scheduler": {"step_tokens": 20}}).engine
    executor = engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    if pieces:
        executor.pieces = LayerGraphs(executor, 20)
    for count in (1, 7, 30, 45):
        prompt = [(7 * count + place) % 250 for place in range(count)]
        engine.submit(make_request(f"p{count}", prompt, 9, ignore_eos=True))
    tokens = {name: tuple(one.token_ids) for name, one in run_to_end(engine).items()}
    return tokens, executor.pieces


@pytest.mark.parametrize("model", [LLAMA, HYBRID], ids=["llama", "hybrid"])
def test_steps_in_pieces_give_the_tokens_of_whole_steps(model: dict[str, Any]) -> None:
    wanted, _ = answers(model, pieces=False)
    tokens, pieces = answers(model, pieces=True)
    assert tokens == wanted
    assert pieces.replays >= 12


def test_pieces_run_for_steps_only_not_to_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = [0]
    replay = Repeated.replay

    def count(self: Repeated) -> Outputs:
        replays[0] += 1
        return replay(self)

    monkeypatch.setattr(Repeated, "replay", count)
    _, pieces = answers(LLAMA, pieces=True)
    assert replays[0] == pieces.replays * (LLAMA["num_hidden_layers"] + 1)


def test_what_padding_holds_changes_nothing() -> None:
    engine = compose_toy(LLAMA).engine
    executor = engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    pieces = executor.pieces = LayerGraphs(executor, 64)
    layer = executor.parts.model.layers[0]
    answers = []
    for left_behind in (0.0, float("nan")):
        pieces.attended(layer, torch.float32).fill_(left_behind)
        pieces.tokens(64).fill_(int(left_behind == 0.0))
        engine.submit(make_request("one", [3, 1, 4, 1, 5], 6, ignore_eos=True))
        answers.append(run_to_end(engine)["one"].token_ids)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 6


def test_at_most_an_eighth_of_the_rows_is_padding() -> None:
    sizes = token_sizes(8192)
    assert sizes[0] == 1
    assert sizes[-1] == 8192
    padding = [
        (size - tokens) / size for tokens in range(65, 8193) for size in [_least(sizes, tokens)]
    ]
    assert max(padding) < 1 / 8
    assert token_sizes(100) == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 72, 80, 88, 96, 100]


def test_a_few_decodes_beside_a_chunk_cost_no_eighth() -> None:
    sizes = token_sizes(16640)
    assert [_least(sizes, 7168 + few) for few in (0, 1, 128, 129, 257)] == [
        7168, 7296, 7296, 7424, 7680,
    ]  # fmt: skip
    assert [_least(sizes, 16384 + few) for few in (1, 129, 256)] == [16512, 16640, 16640]


def _least(sizes: list[int], tokens: int) -> int:
    return next(size for size in sizes if size >= tokens)
