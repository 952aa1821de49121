"""Each parameter against a few lines of numpy, and the bug reports about them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from camshaft.component import Settings
from camshaft.contracts.sampling import LogitsProcessor, SamplerSpec
from camshaft.plugins.sampling.allowed import AllowedIds
from camshaft.plugins.sampling.bad_words import BadWords
from camshaft.plugins.sampling.bias import LogitBias
from camshaft.plugins.sampling.components import StandardSettings
from camshaft.plugins.sampling.grammar_mask import GrammarMask
from camshaft.plugins.sampling.min_tokens import MinTokens
from camshaft.plugins.sampling.penalties import Penalties
from camshaft.plugins.sampling.standard import Standard
from camshaft.testing.sampling_play import Ask, Play, admit, params, row_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from camshaft.request import SamplingParams

V = 60
LOGITS = np.random.default_rng(5).normal(0, 3, V).astype(np.float32)


def processed(kind: Callable[[Settings], LogitsProcessor], ask: Ask) -> np.ndarray:
    """Return LOGITS as a processor leaves them."""
    processor = kind(Settings())
    processor.attach(SamplerSpec(V, 1, "cpu"))
    processor.admit(admit(ask))
    row = torch.from_numpy(LOGITS.copy())[None]
    if processor.active(row_context([0])):
        processor.apply(row, row_context([0]))
    result: np.ndarray = row[0].numpy()
    return result


def forbidden(ids: Iterable[int]) -> np.ndarray:
    expected = LOGITS.copy()
    expected[list(ids)] = -np.inf
    return expected


def test_bias_is_added() -> None:
    expected = LOGITS.copy()
    expected[[3, 9]] += (2.5, -100)
    found = processed(LogitBias, Ask(0, params(logit_bias={3: 2.5, 9: -100.0})))
    assert np.array_equal(found, expected)


def test_other_than_allowed_ids_are_forbidden() -> None:
    found = processed(AllowedIds, Ask(0, params(allowed_token_ids=(3, 9, 3))))
    assert np.array_equal(found, forbidden(set(range(V)) - {3, 9}))


@pytest.mark.parametrize("outputs", [(), (7, 8), (7, 8, 7, 7)])
def test_SMP_07_presence_and_frequency_follow_their_formula_on_outputs(
    outputs: tuple[int, ...],
) -> None:
    one = params(presence_penalty=0.7, frequency_penalty=-0.4)
    counts = np.bincount(outputs, minlength=V)
    expected = LOGITS - -0.4 * counts - 0.7 * (counts > 0)
    found = processed(Penalties, Ask(0, one, prompt=(7, 1, 1), outputs=outputs))
    assert np.allclose(found, expected, atol=1e-6)


def test_SMP_07_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    prompt, outputs = (3, 4, 4, 5), (5, 6, 7)
    expected = LOGITS.copy()
    for token in {*prompt, *outputs}:
        expected[token] *= 1 / 1.5 if LOGITS[token] > 0 else 1.5
    assert len(set(np.sign(LOGITS[3:8]))) == 2
    found = processed(Penalties, Ask(0, params(repetition_penalty=1.5), 0, prompt, outputs))
    assert np.allclose(found, expected, atol=1e-6)


def test_SMP_07_penalties_leave_the_first_token_and_its_logprob_alone() -> None:
    def first(one: SamplingParams) -> tuple[list[int], float]:
        play = Play(sampler(), V).start(Ask(0, one, prompt=(38, 42, 42)))
        play.step([0])
        return play.outputs[0], play.logprobs[0][0].logprob

    plain = params(0.0, logprobs=5)
    penalised = params(0.0, presence_penalty=2.0, frequency_penalty=2.0, logprobs=5)
    assert first(plain) == first(penalised)


def test_SMP_07_a_frequency_penalty_lowers_the_count_of_a_favourite() -> None:
    def count(penalty: float) -> int:
        one = params(0.0, {42: 8.0}, frequency_penalty=penalty)
        return Play(sampler(), V).start(Ask(0, one)).run([0], 30)[0].count(42)

    assert count(2.0) < count(0.0)


@pytest.mark.parametrize(
    ("outputs", "ids"),
    [((), {9}), ((5,), {9}), ((5, 6), {7, 9}), ((6, 5), {9, 8}), ((5, 6, 5), {8, 9})],
)
def test_bad_words_forbid_the_last_id_behind_the_others(
    outputs: tuple[int, ...], ids: set[int]
) -> None:
    one = params(bad_words=((5, 6, 7), (6, 5, 8), (9,)))
    found = processed(BadWords, Ask(0, one, prompt=(5, 6), outputs=outputs))
    assert np.array_equal(found, forbidden(ids))


def test_SMP_05_a_word_is_banned_in_each_of_its_forms() -> None:
    # bare form: three ids; with a space in front: one id
    words = ((8, 12, 48), (24,))
    one = params(0.0, {24: 100.0}, bad_words=words)
    assert 24 not in Play(sampler(), V).start(Ask(0, one)).run([0], 3)[0]

    def next_token(outputs: tuple[int, ...], prompt: tuple[int, ...] = (1,)) -> int:
        biased = params(0.0, {48: 100.0}, bad_words=words)
        ask = Ask(0, biased, prompt=prompt, outputs=outputs)
        return Play(sampler(), V).start(ask).run([0], 1)[0][0]

    assert next_token((8, 12)) != 48
    assert next_token((8, 12, 1)) == 48
    assert next_token((12,)) == 48
    assert next_token((), prompt=(8, 12)) == 48  # the prompt is not output


def test_SMP_05_a_word_of_two_ids_is_banned_across_steps() -> None:
    one = params(logit_bias={30: 50.0, 31: 50.0, 32: 50.0}, bad_words=((30, 31),))
    pairs = set(itertools.pairwise(Play(sampler(), V).start(Ask(0, one)).run([0], 60)[0]))
    assert {(31, 30), (31, 31), (32, 31), (30, 32)} <= pairs
    assert (30, 31) not in pairs


@pytest.mark.parametrize("least", [0, 1, 4])
def test_SMP_03_min_tokens_holds_the_end_back_to_the_token(least: int) -> None:
    one = params(0.0, {2: 100.0}, min_tokens=least)
    play = Play(sampler(), V).start(Ask(0, one, stops=(2,)))
    outputs = play.run([0], least + 1)[0]
    assert 2 not in outputs[:least]
    assert outputs[least] == 2


def test_SMP_03_ids_that_do_not_stop_are_free_from_the_start() -> None:
    # under ignore_eos only the user's stop ids arrive as stops
    one = params(0.0, {2: 100.0, 3: 99.0}, min_tokens=4)
    assert Play(sampler(), V).start(Ask(0, one, stops=(3,))).run([0], 6)[0] == [2] * 6
    found = processed(MinTokens, Ask(0, one, stops=(3,)))
    assert np.array_equal(found, forbidden([3]))


def test_masks_forbid_ids_without_a_bit() -> None:
    rng = np.random.default_rng(3)
    allowed = rng.integers(0, 2, (5, 64), dtype=np.uint8)
    bits = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    rows = torch.from_numpy(LOGITS).repeat(5, 1)
    GrammarMask(torch.device("cpu")).apply(rows, torch.from_numpy(bits))
    expected = np.where(allowed[:, :V] == 1, LOGITS, -np.inf)
    assert np.array_equal(rows.numpy(), expected)


GREEDY = [
    *(params(temperature) for temperature in (1e-4, 1e-6, 1e-30)),
    *(params(top_k=1), params(top_p=1e-9), params(min_p=1.0)),
]
OFF = [params(top_k=top_k) for top_k in (0, -1, V, V + 1, 10**9)]
OTHER = [params(1e-2), params(2.0), params(top_p=1.0), params(min_p=0.0)]


@pytest.mark.parametrize("one", [*GREEDY, *OFF, *OTHER])
def test_SMP_01_extreme_values_alone(one: SamplingParams) -> None:
    found = Play(sampler(), V).start(Ask(0, one, seed=1)).run([0], 20)[0]
    assert len(found) == 20
    if one in GREEDY:
        assert found == Play(sampler(), V).start(Ask(0, params(0.0), seed=1)).run([0], 20)[0]
    if one in OFF:
        assert found == Play(sampler(), V).start(Ask(0, params(), seed=1)).run([0], 20)[0]


def test_SMP_01_extreme_values_together() -> None:
    every = [*GREEDY, *OFF, *OTHER]
    asks = [Ask(slot, one, seed=1) for slot, one in enumerate(every)]
    together = Play(sampler(len(asks)), V).start(*asks).run(range(len(asks)), 20)
    for ask in asks:
        alone = Play(sampler(), V).start(Ask(0, ask.params, seed=1)).run([0], 20)
        assert together[ask.slot] == alone[0], ask.params


def test_logprobs_are_a_log_softmax_in_float64() -> None:
    play = Play(sampler(), V).start(Ask(0, params(logprobs=V), seed=3))
    play.step([0])
    [found] = play.logprobs[0]
    from_best = [value - found.top_logprobs[0] for value in found.top_logprobs]
    total = math.log(sum(math.exp(value) for value in from_best))
    assert np.allclose(found.top_logprobs, np.array(from_best) - total, atol=1e-5)
    assert sorted(found.top_ids) == list(range(V))
    assert found.top_ids[found.rank - 1] == play.outputs[0][0]


def sampler(slots: int = 1) -> Standard:
    return Standard(StandardSettings(), SamplerSpec(V, slots, "cpu"))
