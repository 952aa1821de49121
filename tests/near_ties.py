"""Answers of two ways to compute the same: equal up to where a model hardly prefers its token."""

from __future__ import annotations

from collections.abc import Mapping

from camshaft.request import RequestOutput

NEAR_TIE = 1e-3
"""Nats between the two best tokens; what comes behind a choice as near as that may differ."""


def agreeing(wanted: Mapping[str, RequestOutput], got: Mapping[str, RequestOutput]) -> int:
    """Compare tokens and their logprobs up to each answer's first near-tie.

    Args:
        wanted: Answers by id, with two logprobs a token.
        got: Those to be compared.

    Returns:
        Tokens that were compared.
    """
    compared = 0
    for name, one in wanted.items():
        for place, token in enumerate(one.token_ids):
            first, second = one.logprobs[place].top_logprobs[:2]
            if first - second < NEAR_TIE:
                break
            assert got[name].token_ids[place] == token, (name, place)
            assert abs(got[name].logprobs[place].logprob - one.logprobs[place].logprob) < 1e-2
            compared += 1
    return compared
