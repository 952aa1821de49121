"""The ranges of sampling parameters; the one place that knows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from camshaft.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.request import CacheScope, SamplingParams

MOST_STOPS = 4
MOST_LOGPROBS = 20
MOST_TOKENS = 10_000_000
"""More than any model holds: a larger `max_tokens` is a mistake, a smaller one is cut to fit."""


class Range(NamedTuple):
    """Allowed values of a parameter.

    Attributes:
        least: Smallest value.
        most: Largest value.
        above: The smallest value itself is not allowed.
    """

    least: float
    most: float
    above: bool = False

    def __str__(self) -> str:
        least = f"above {self.least:g}" if self.above else f"at least {self.least:g}"
        return least if math.isinf(self.most) else f"{least} and at most {self.most:.12g}"

    def holds(self, value: float) -> bool:
        """Whether a value lies inside; NaN does not."""
        least = value > self.least if self.above else value >= self.least
        return least and value <= self.most and math.isfinite(value)


RANGES: dict[str, Range] = {
    "max_tokens": Range(1, MOST_TOKENS),
    "temperature": Range(0, 2),
    "top_k": Range(0, math.inf),
    "top_p": Range(0, 1, above=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0.01, 100),  # far below and above logits overflow
    "logprobs": Range(0, MOST_LOGPROBS),
    "prompt_logprobs": Range(0, MOST_LOGPROBS),
    "min_tokens": Range(0, math.inf),
    "seed": Range(-(2**63), 2**64 - 1),
}
"""Ranges of the numbers, OpenAI's where it has the parameter."""

BIAS = Range(-100, 100)
VERSION = Range(0, 2**63 - 1)
TTL = Range(0, math.inf, above=True)
LONGEST_NAME = 256
"""Characters of a salt or a namespace."""


def check_params(params: SamplingParams, vocab: int) -> None:
    """Refuse parameters that no engine should see.

    Args:
        params: Of the right types.
        vocab: Ids are below it.

    Raises:
        RequestError: Names the parameter.
    """
    for name, allowed in RANGES.items():
        value = getattr(params, name)
        if value is not None:
            check_range(name, value, allowed)
    if params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens is {params.min_tokens}, more than max_tokens, {params.max_tokens}",
            param="min_tokens",
        )
    if len(params.stop) > MOST_STOPS:
        raise RequestError(f"stop takes at most {MOST_STOPS} strings", param="stop")
    if "" in params.stop:
        raise RequestError("stop holds an empty string", param="stop")
    if not all(params.bad_words):
        raise RequestError("bad_words holds one without tokens", param="bad_words")
    for bias in params.logit_bias.values():
        check_range("logit_bias", bias, BIAS)
    _check_ids("logit_bias", params.logit_bias, vocab)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab)
    _check_ids("allowed_token_ids", params.allowed_token_ids, vocab)
    _check_ids("bad_words", (one for word in params.bad_words for one in word), vocab)


def check_name(name: str, value: str) -> None:
    """Refuse a salt or a namespace that is too long.

    Raises:
        RequestError: Names it.
    """
    if len(value) > LONGEST_NAME:
        raise RequestError(
            f"{name} is longer than {LONGEST_NAME} characters", param=name.partition(".")[0]
        )


def check_scope(scope: CacheScope) -> None:
    """Refuse a cache scope that means nothing.

    Raises:
        RequestError: Names the part.
    """
    check_name("cache.namespace", scope.namespace)
    check_range("cache.version", scope.version, VERSION)
    if scope.ttl_s != math.inf:
        check_range("cache.ttl_s", scope.ttl_s, TTL)
    if not scope.namespace and (scope.version or scope.ttl_s != math.inf):
        raise RequestError(
            "cache.namespace is empty: a version and a time to live belong to a namespace",
            param="cache",
        )


def check_range(name: str, value: float, allowed: Range) -> None:
    """Refuse a number out of range.

    Raises:
        RequestError: Names the parameter and the range; of `a.b`, `a` is the parameter.
    """
    if not allowed.holds(value):
        raise RequestError(
            f"{name} must be {allowed}, not {value:.12g}", param=name.partition(".")[0]
        )


def _check_ids(name: str, ids: Iterable[int], vocab: int) -> None:
    for one in ids:
        if not 0 <= one < vocab:
            raise RequestError(
                f"{name} holds token id {one}; this model has the ids 0 to {vocab - 1}", param=name
            )
