from __future__ import annotations

from camshaft.generate import best_of
from camshaft.generate.answers import Choice, TokenReport, TokenText


def choice(index: int, *logprobs: float) -> Choice:
    reports = [TokenReport(TokenText(1, "a", b"a", one), 1, (), 0) for one in logprobs]
    return Choice(index, text=f"{index}", logprobs=reports)


def test_the_most_probable_a_token_are_taken_the_best_first() -> None:
    made = [choice(0, -3, -3), choice(1, -1, -2, -3), choice(2, -0.5), choice(3, -9)]
    assert [(one.index, one.text) for one in best_of(made, 4, 2)] == [(0, "2"), (1, "1")]


def test_each_prompt_has_its_own_and_of_equals_the_earlier_is_better() -> None:
    made = [choice(0, -1), choice(1, -1), choice(2, -2), choice(3, -1)]
    assert [(one.index, one.text) for one in best_of(made, 2, 1)] == [(0, "0"), (1, "3")]
