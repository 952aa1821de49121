"""Ranges of sampling parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest

from camshaft.errors import RequestError
from camshaft.generate import check_params
from camshaft.request import SamplingParams

WRONG = [
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -1),
    ("temperature", 2.1),
    ("top_p", 0),
    ("top_p", -0.1),
    ("top_p", 1.5),
    ("top_p", math.nan),
    ("min_p", 2),
    ("top_k", -1),
    ("max_tokens", 0),
    ("max_tokens", 10**9),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", math.inf),
    ("repetition_penalty", 5e-324),
    ("repetition_penalty", 101),
    ("logit_bias", {258: 1e9}),
    ("logit_bias", {259: 5}),
    ("logit_bias", {-1: 5}),
    ("stop", ("",)),
    ("stop", ("a", "b", "c", "d", "e")),
    ("stop_token_ids", (259,)),
    ("allowed_token_ids", (-1,)),
    ("logprobs", -1),
    ("logprobs", 21),
    ("min_tokens", 17),
    ("seed", 2**64),
    ("bad_words", ((),)),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_SMP_02_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, name: value}
    params = SamplingParams(**fields)
    with pytest.raises(RequestError, match=f"^{name} ") as caught:
        check_params(params, vocab=259)
    assert (caught.value.param, caught.value.status) == (name, 400)


RIGHT = [
    ("temperature", 1e-30),
    ("temperature", 2.0),
    ("top_k", 10**9),
    ("top_p", 1e-9),
    ("min_p", 1.0),
    ("logit_bias", {}),
    ("logit_bias", {258: -100}),
    ("stop", ()),
    ("seed", -1),
]


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_SMP_02_extremes_that_are_legal_pass(name: str, value: object) -> None:
    fields: dict[str, Any] = {"max_tokens": 16, name: value}
    check_params(SamplingParams(**fields), vocab=259)
