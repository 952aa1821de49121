"""How a request with modules is laid out, and what its steps tell the device."""

from __future__ import annotations

import pytest

from camshaft.contracts.cache import Run
from camshaft.loop.modules import runs_of
from camshaft.loop.pack import admissions
from camshaft.loop.state import RequestState
from camshaft.request import Request, TokenSpan
from camshaft.testing.engines import make_request


def request(*spans: TokenSpan, max_tokens: int = 8) -> Request:
    made = make_request("a", [], max_tokens)
    made.spans = spans
    return made


FOUR, EIGHT, OWN = [5] * 4, [6] * 8, TokenSpan([1, 2])


@pytest.mark.parametrize(
    ("spans", "runs"),
    [
        ((OWN,), ()),
        ((OWN, TokenSpan([3])), ()),
        ((TokenSpan(FOUR, 0), OWN), ()),
        ((TokenSpan(FOUR, 0),), ()),
        ((TokenSpan(FOUR, 8),), (Run(0, 8),)),
        ((TokenSpan(FOUR, 8), OWN), (Run(0, 8), Run(4, 12))),
        ((TokenSpan(FOUR, 8), OWN, TokenSpan([3])), (Run(0, 8), Run(4, 12))),
        ((TokenSpan(FOUR, 0), TokenSpan(EIGHT, 4), OWN), (Run(0, 0), Run(4, 4), Run(12, 12))),
        ((TokenSpan(FOUR, 0), TokenSpan(EIGHT, 20), OWN), (Run(0, 0), Run(4, 20), Run(12, 28))),
    ],
)
def test_runs_are_empty_where_everything_is_as_in_one_text(
    spans: tuple[TokenSpan, ...], runs: tuple[Run, ...]
) -> None:
    assert runs_of(request(*spans)) == runs


def state(*spans: TokenSpan, max_tokens: int = 8) -> RequestState:
    return RequestState(1, request(*spans, max_tokens=max_tokens), frozenset(), 100, 0, 200)


def test_positions_exceed_indices_by_the_gaps_before_a_requests_own_tokens() -> None:
    gap = state(TokenSpan(FOUR, 0), TokenSpan(EIGHT, 20), OWN)
    assert (gap.offset, gap.module_tokens, gap.prompt_tokens) == (16, 12, 14)
    module = state(TokenSpan(FOUR, 8))
    assert (module.offset, module.module_tokens) == (8, 0)
    dense = state(TokenSpan(FOUR, 0), TokenSpan(EIGHT, 4), OWN)
    assert (dense.offset, dense.module_tokens) == (0, 12)


def test_answers_end_with_the_room_or_with_the_positions() -> None:
    assert state(OWN, max_tokens=500).max_tokens == 98
    assert state(TokenSpan(FOUR, 90), OWN, max_tokens=500).max_tokens == 94
    assert state(TokenSpan(FOUR, 190), OWN, max_tokens=500).max_tokens == 4


def test_offsets_are_sent_only_if_somebody_has_one() -> None:
    plain, gap = state(OWN), state(TokenSpan(FOUR, 8), OWN)
    assert admissions([plain, plain]).offsets.tolist() == []
    assert admissions([plain, gap]).offsets.tolist() == [0, 8]
