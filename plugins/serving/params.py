"""From the fields of a request to what the engine understands."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from camshaft.errors import RequestError
from camshaft.generate import Beams, check_beams, check_name, check_params, check_scope
from camshaft.generate.check import Range, check_range
from camshaft.request import EVERYWHERE, CacheScope, SamplingParams

if TYPE_CHECKING:
    from camshaft.generate import Prompter

    from .fields import Fields

MOST_CHOICES = 128
PRIORITY = Range(-(2**31), 2**31 - 1)
SLO_MS = Range(0, 3_600_000, above=True)
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_TOKEN_ID = re.compile(r"\d{1,10}", re.ASCII)


def sampling_params(
    fields: Fields,
    prompter: Prompter,
    vocab: int,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Return the checked parameters of a request.

    Args:
        fields: As sent.
        prompter: Tokenises bad words.
        vocab: Ids are below it.
        max_tokens: With the default of the endpoint.
        logprobs: Alternatives to report, or None.
        prompt_logprobs: The same for tokens of the prompt.

    Raises:
        RequestError: Names the field.
    """
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_k=0 if fields.top_k == -1 else fields.top_k,
        top_p=fields.top_p,
        min_p=fields.min_p,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=_bias(fields.logit_bias),
        seed=fields.seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        stop=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        min_tokens=fields.min_tokens,
        ignore_eos=fields.ignore_eos,
        bad_words=prompter.bad_words(fields.bad_words),
        allowed_token_ids=_allowed(fields.allowed_token_ids),
        include_stop=fields.include_stop_str_in_output,
    )
    check_params(params, vocab)
    return params


def check_call(fields: Fields) -> None:
    """Check what concerns the call and not the choice of tokens.

    Raises:
        RequestError: Names the field.
    """
    check_range("n", fields.n, Range(1, MOST_CHOICES))
    check_range("priority", fields.priority, PRIORITY)
    for name, wanted in (("ttft_slo_ms", fields.ttft_slo_ms), ("tpot_slo_ms", fields.tpot_slo_ms)):
        if wanted is not None:
            check_range(name, wanted, SLO_MS)
    check_name("cache_salt", fields.cache_salt)
    check_name("user", fields.user)
    if fields.request_id is not None and not _REQUEST_ID.fullmatch(fields.request_id):
        raise RequestError(
            "request_id must be 1 to 128 letters, digits and _ . : -", param="request_id"
        )


def beams_of(
    fields: Fields, params: SamplingParams, *, width: int, max_running: int
) -> Beams | None:
    """Return how beams are searched for, or None if they are not.

    Args:
        fields: As sent.
        params: Made of them.
        width: Beams of each prompt.
        max_running: Requests that the engine runs at once.

    Raises:
        RequestError: Names the field.
    """
    if not fields.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(fields, name) is not None:
                raise RequestError(f"{name} needs use_beam_search: true", param=name)
        return None
    if fields.stream:
        raise RequestError(
            "stream: the best beams are not known before all have ended",
            param="stream",
            code="unsupported",
        )
    penalty = 1.0 if fields.length_penalty is None else fields.length_penalty
    beams = Beams(width, penalty, fields.early_stopping or False)
    check_beams(beams, params, fields.n, max_running)
    return beams


def seconds(milliseconds: float | None) -> float | None:
    """Return a wanted time in seconds; None stays None."""
    return None if milliseconds is None else milliseconds / 1000


def cache_scope(fields: Fields) -> CacheScope:
    """Return the checked scope of a request's cached pages.

    Raises:
        RequestError: Names the part.
    """
    if fields.cache is None:
        return EVERYWHERE
    ttl_s = math.inf if fields.cache.ttl_s is None else fields.cache.ttl_s
    scope = CacheScope(fields.cache.namespace, fields.cache.version, ttl_s)
    if not scope.namespace:
        raise RequestError("cache.namespace is empty", param="cache")
    check_scope(scope)
    return scope


def _bias(given: dict[str, float]) -> dict[int, float]:
    for key in given:
        if not _TOKEN_ID.fullmatch(key):
            raise RequestError(f"logit_bias: '{key:.40}' is not a token id", param="logit_bias")
    return {int(key): value for key, value in given.items()}


def _allowed(ids: list[int] | None) -> tuple[int, ...]:
    if ids is not None and not ids:
        raise RequestError("allowed_token_ids allows none", param="allowed_token_ids")
    return tuple(ids or ())
