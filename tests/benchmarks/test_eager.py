"""The eager reference finds an engine's answers right, and altered ones wrong."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.eager import NEAR_TIE, Checked, Eager, check_some
from camshaft.compose import Composed
from camshaft.errors import CamshaftError
from camshaft.plugins.lab.measure import Measurement, measure
from camshaft.plugins.lab.workloads import Job
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy

WORK = [Job(tuple(range(10 + number, 60 + number)), 100) for number in (0, 3, 7)]
PLAIN: dict[str, dict[str, Any]] = {
    "engine": {"deterministic": False},
    "attention": {"use": "sdpa"},
}


@pytest.fixture(scope="module")
def composed() -> Composed:
    return compose_toy({**LLAMA, "model_type": "decoder", "qk_norm": True}, PLAIN)


@pytest.fixture(scope="module")
def run(composed: Composed) -> Measurement:
    return measure(composed.engine, WORK)


def test_answers_of_the_engine_are_right(composed: Composed, run: Measurement) -> None:
    checked = check_some(Eager(composed.drawing), WORK, run.answers, 8)
    assert [one.tokens for one in checked] == [100, 100, 100]
    assert all(one.passed for one in checked)
    assert sum(one.equal for one in checked) >= 298


@pytest.mark.parametrize("place", [0, 17, 99])
def test_another_token_is_found_wherever_it_stands(
    composed: Composed, run: Measurement, place: int
) -> None:
    answer = list(run.answers[0])
    answer[place] = (answer[place] + 1) % composed.info.vocab
    one = Eager(composed.drawing).check(WORK[0].prompt, answer)
    assert one.worst > NEAR_TIE
    assert not one.passed


def test_an_answer_to_another_prompt_is_found(composed: Composed, run: Measurement) -> None:
    assert not Eager(composed.drawing).check(WORK[1].prompt, run.answers[0]).passed


def test_some_requests_of_many_are_spread_over_them(composed: Composed, run: Measurement) -> None:
    seen: list[int] = []

    class Listens(Eager):
        def check(self, prompt, answer) -> Checked:
            seen.append(prompt[0])
            return Checked(1, 1, 0.0)

    many = [Job((number,), 1) for number in range(20)]
    check_some(Listens(composed.drawing), many, [(0,)] * 20, 4)
    assert seen == [0, 5, 10, 15]


def test_layers_that_it_does_not_know_are_refused() -> None:
    with pytest.raises(CamshaftError, match="--no-check"):
        Eager(compose_toy(HYBRID).drawing)
