"""The ranges of sampling parameters; the one place that knows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from camshaft.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from camshaft.request import CacheScope, SamplingParams

    from .beams import Beams

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
LENGTH_PENALTY = Range(-10, 10)
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


NOT_WITH_BEAMS: dict[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "seed": (None,),
    "prompt_logprobs": (None,),
    "stop": ((),),
    "min_tokens": (0,),
    "bad_words": ((),),
    "allowed_token_ids": ((),),
}
"""Parameters that say how tokens are drawn or weighed, with the values that ask for nothing."""


def check_beams(beams: Beams, params: SamplingParams, n: int, slots: int | None = None) -> None:
    """Refuse a beam search that cannot be, or not as it is asked for.

    Args:
        beams: How to search.
        params: Of the answers; beams go by the model's own probabilities.
        n: Answers to each prompt.
        slots: Requests that the engine runs at once; None is not compared with.

    Raises:
        RequestError: Names the parameter.
    """
    for name, harmless in NOT_WITH_BEAMS.items():
        if getattr(params, name) not in harmless:
            raise RequestError(
                f"{name}: a beam search goes by the model's own probabilities and does not take it",
                param=name,
                code="unsupported",
            )
    check_range("length_penalty", beams.length_penalty, LENGTH_PENALTY)
    check_range("n", n, Range(1, beams.width))
    if slots is not None and beams.width > slots:
        raise RequestError(
            f"n: {beams.width} beams are asked for; this engine runs at most {slots} at once",
            param="n",
        )


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
