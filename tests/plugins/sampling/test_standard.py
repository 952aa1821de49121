"""The standard sampler beside its slow twin, and what only it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from camshaft.contracts.sampling import SamplerSpec
from camshaft.plugins.sampling import choose as module
from camshaft.plugins.sampling import leading
from camshaft.plugins.sampling.components import StandardSettings
from camshaft.plugins.sampling.random import stream_keys, uniforms
from camshaft.plugins.sampling.standard import Standard
from camshaft.registry import Registry
from camshaft.testing.no_waits import NoWaits
from camshaft.testing.row_by_row import RowByRow, Slot
from camshaft.testing.sampling_making import MENU, VOCAB, menu
from camshaft.testing.sampling_play import Ask, Play, admit, params, row_context

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.testing.row_by_row import Row


class Twin(RowByRow):
    """Draws with the same numbers, and sums up probabilities by id."""

    def uniform(self, seed: int, index: int, place: int) -> float:
        halves = np.array([seed], dtype=np.uint64).view(np.int32).reshape(1, 2)
        return float(uniforms(torch.from_numpy(stream_keys(halves)), torch.tensor([index])))

    def sequence(self, row: Row, own: Slot) -> NDArray[np.int64]:
        return np.arange(len(row))


def standard(slots: int, vocab: int = VOCAB, max_drafts: int = 0) -> Standard:
    return Standard(StandardSettings(), SamplerSpec(vocab, slots, "cpu", max_drafts))


def logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(0, 3, (rows, vocab)), dtype=torch.float32)


@pytest.mark.parametrize("candidates", [0, 8, 128])
def test_every_parameter_gives_the_tokens_of_the_slow_twin(
    monkeypatch: pytest.MonkeyPatch, candidates: int
) -> None:
    monkeypatch.setattr(module, "CANDIDATES", candidates)
    asks = menu()
    fast = Play(standard(len(asks)), VOCAB).start(*asks)
    slow = Play(Twin(SamplerSpec(VOCAB, len(asks), "cpu")), VOCAB).start(*asks)
    order = range(len(asks))
    assert fast.run(order, 40) == slow.run(order, 40)


@pytest.mark.parametrize("candidates", [0, 64, 1000, 10**6])
def test_tokens_do_not_depend_on_how_the_kept_ones_are_found(
    monkeypatch: pytest.MonkeyPatch, candidates: int
) -> None:
    cuts = (params(top_k=40), params(top_p=0.9), params(1.5, top_k=700, top_p=0.99, min_p=1e-4))
    asks = [Ask(slot, cuts[slot % 3], seed=slot) for slot in range(60)]
    values = logits(60, 5000).mul(4).round().div(4)  # with ties
    expected = choose(asks, values)
    monkeypatch.setattr(module, "CANDIDATES", candidates)
    assert choose(asks, values) == expected


def choose(asks: list[Ask], values: torch.Tensor) -> list[int]:
    sampler = standard(1 + max(ask.slot for ask in asks), values.shape[1])
    sampler.admit(admit(*asks))
    rows = row_context([ask.slot for ask in asks])
    tokens: list[int] = sampler.sample(values.clone(), rows, None).tokens[:, 0].tolist()
    return tokens


@pytest.mark.parametrize("vocab", [49152, 4099])
def test_SMP_08_each_row_of_a_large_batch_gets_its_solo_token(vocab: int) -> None:
    asks = [
        Ask(slot, MENU[slot % len(MENU)], seed=slot, outputs=(1, 2) * slot, stops=(2,))
        for slot in range(30)
    ]
    values = logits(30, vocab)
    together = choose(asks, values)
    assert together == [choose([ask], values[ask.slot : ask.slot + 1])[0] for ask in asks]
    order = np.random.default_rng(0).permutation(30).tolist()
    shuffled = choose([asks[slot] for slot in order], values[order])
    assert shuffled == [together[slot] for slot in order]


def test_SMP_08_greedy_neighbours_and_seedless_ones_change_no_seeded_request() -> None:
    asks = [Ask(0, params(), seed=5), Ask(1, params(0.0)), Ask(2, params(), seed=5)]
    values = logits(1, VOCAB).repeat(3, 1)
    for first in asks[1:]:
        mixed = choose([first, asks[0]], values[:2])
        assert mixed[1] == choose([asks[0]], values[:1])[0]
    twins = choose([asks[0], asks[2]], values[:2])
    assert twins[0] == twins[1]


@pytest.mark.parametrize("drafts", [0, 3])
def test_no_request_makes_the_host_wait(monkeypatch: pytest.MonkeyPatch, drafts: int) -> None:
    monkeypatch.setattr(leading, "CPU_WIDTHS", ())  # as on an accelerator
    monkeypatch.setattr(module, "CANDIDATES", 0)
    asks = [*menu(), Ask(len(MENU), params(logprobs=4, top_p=0.5), outputs=(3, 4))]
    admissions, order = admit(*asks), range(len(asks))
    rows = row_context(order, [[1] * drafts] * len(asks), max_drafts=drafts)
    values = logits(len(rows.row_request), VOCAB)
    masks = torch.full((len(values), 2), -1, dtype=torch.int32)
    sampler = standard(len(asks), max_drafts=drafts)
    with NoWaits(), torch.inference_mode():
        sampler.admit(admissions)
        for _ in range(2):
            sampler.sample(values.clone(), rows, masks)


def test_the_histories_of_long_outputs_grow() -> None:
    one = params(0.0, frequency_penalty=0.1, repetition_penalty=1.2)
    play = Play(standard(2), VOCAB).start(Ask(0, one), Ask(1, params()))
    outputs = play.run([0, 1], 300)[0]
    again = Play(standard(1), VOCAB).start(Ask(0, one, outputs=tuple(outputs[:299])))
    assert again.run([0], 1)[0] == outputs[299:]


def test_words_longer_than_any_before_find_their_history() -> None:
    play = Play(standard(2), VOCAB).start(Ask(0, params(0.0, bad_words=((1, 2),))))
    play.run([0], 2)
    one = params(0.0, {2: 100.0}, bad_words=((9, 8, 7, 6, 2),))
    play.start(Ask(1, one, outputs=(9, 8, 7, 6)))
    play.step([0, 1])
    assert play.outputs[1] != [2]
    play.step([0, 1])
    assert play.outputs[1][1] == 2


def test_recipes_find_it_and_it_has_no_settings() -> None:
    component = Registry.discover().get("sampling", "standard")
    assert component.load() is Standard
    with pytest.raises(ValueError, match="extra_forbidden"):
        component.settings.model_validate({"top_k": 1})
