"""Requests, their sampling parameters and their outputs: the messages of the engine."""

from __future__ import annotations

from math import inf
from typing import Literal, get_args

import msgspec

Pooling = Literal["none", "mean", "last", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""A step carries their numbers."""

FinishReason = Literal["stop", "length", "abort", "error", "refused"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are chosen. Values are validated before they get here.

    Attributes:
        max_tokens: Most tokens to generate, at least 1.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        presence_penalty: Subtracted from every token that was generated before.
        frequency_penalty: Subtracted once for each time a token was generated before.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or
            output (Keskar et al., CTRL, 2019, section 4.1); 1 is off.
        logit_bias: Added to the logits, by token id.
        seed: Of the request's own random numbers; None lets the engine draw one.
        logprobs: Alternatives to report for each token, or None for no logprobs.
        prompt_logprobs: The same for each token of the prompt but the first. What it is not yet
            reported of is computed for this request: the cache serves nothing of it.
        stop: Stop strings, matched on text by whoever detokenises.
        stop_token_ids: Token ids that end the request, kept even under `ignore_eos`.
        min_tokens: Before so many tokens neither EOS nor a stop id can be chosen.
        ignore_eos: The model's EOS ids do not end the request.
        bad_words: Token sequences that the output must not contain.
        allowed_token_ids: If not empty, no other id can be chosen.
        include_stop: Text and ids of the stop are part of the answer.
        pooling: Other than `none`: the answer is no token but a vector, made of what the model
            knows at each token of the prompt: their `mean`, or that at the `last` or the first
            (`cls`). `max_tokens` is 1 then. For all but `last` the cache serves nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    pooling: Pooling = "none"

    @property
    def needs_history(self) -> bool:
        """Whether choosing a token needs the ids that came before it."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.bad_words
        )


class TokenSpan(msgspec.Struct, frozen=True, tag="tokens"):
    """A run of token ids of the input. Other kinds of span will stand beside it.

    Attributes:
        ids: The tokens.
        position: Of its first token, where the span is a module: its keys and values are computed
            alone, as if nothing stood before it, and shared by all who have it at this position.
            Modules are whole pages and come before all other spans, by rising position; those
            follow the last module. None for spans that just go on.
    """

    ids: list[int]
    position: int | None = None


class CacheScope(msgspec.Struct, frozen=True):
    """Which cached pages a request shares, beside its salt, and for how long.

    Versions of a namespace go up: pages of an older version than the newest that was seen are never
    served again, not even to requests of that version, and are the first to be evicted. Namespaces
    of different salts have nothing in common.

    Attributes:
        namespace: Pages are shared only within it. The empty one has neither versions nor times.
        version: From 0. Pages are shared only within it.
        ttl_s: Seconds for which a page may be served after it was computed, however often it is
            used: pages that the request computes to anybody, and older ones to this request.
    """

    namespace: str = ""
    version: int = 0
    ttl_s: float = inf


EVERYWHERE = CacheScope()
"""The scope of requests that ask for none."""


class Request(msgspec.Struct, kw_only=True):
    """One sequence to run. A request for `n` answers is `n` of these.

    Attributes:
        id: Unique among the requests in the engine.
        spans: The input.
        params: How tokens are chosen.
        arrival: Seconds on the engine's clock; 0 lets the engine set it.
        priority: Lower is more urgent.
        ttft_slo_s: Wanted time to first token, or None.
        tpot_slo_s: Wanted time per later token, or None.
        tenant: Who is asking, for fairness.
        salt: Cached pages are shared only between requests with the same salt.
        scope: And with the same namespace and version; see there.
        adapter: Adapter of the weights; 0 is none.
        arm: Label of the experiment arm, for metrics.
        needs_host_tokens: Choosing a token needs the host to have read the last one (grammar).
    """

    id: str
    spans: tuple[TokenSpan, ...]
    params: SamplingParams
    arrival: float = 0.0
    priority: int = 0
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    tenant: str = ""
    salt: str = ""
    scope: CacheScope = EVERYWHERE
    adapter: int = 0
    arm: str = ""
    needs_host_tokens: bool = False

    @property
    def modules(self) -> tuple[TokenSpan, ...]:
        """The spans that are computed alone."""
        return tuple(span for span in self.spans if span.position is not None)

    @property
    def prompt_ids(self) -> list[int]:
        """The token ids of all spans, joined."""
        if len(self.spans) == 1:
            return self.spans[0].ids
        return [token for span in self.spans for token in span.ids]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms of the model's own probabilities, before any sampling parameter.

    Attributes:
        logprob: Of the token that was chosen.
        rank: Its place among all tokens, 1 is the most probable.
        top_ids: The most probable ids, best first.
        top_logprobs: Theirs.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class RequestOutput(msgspec.Struct, kw_only=True, gc=False):
    """What a settled step adds to one request.

    Attributes:
        id: The request's.
        token_ids: New ids, in order. An EOS or stop id that ended the request is the last.
        logprobs: One for each new id when asked for, else empty.
        prompt_logprobs: When asked for: of the next prompt tokens, from the second on, that a chunk
            of the prompt brought. All came when the first new id comes.
        embedding: Of a pooled request, in the output that ends it: [C], as the model's head would
            read it, not normalised.
        finish: Why the request ended, or None while it runs.
        stop_id: The id that ended it, when one did.
        cached_tokens: Prompt tokens served from the cache, known from the first output on.
        queued_s: Seconds from its arrival to its first step, with outputs that carry ids found
            one by one: the first one always does. None before that.
        message: What went wrong, for `error` and `refused`.
        retry_after_s: With `refused`: when a new try makes sense.
    """

    id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    embedding: list[float] = []
    finish: FinishReason | None = None
    stop_id: int | None = None
    cached_tokens: int = 0
    queued_s: float | None = None
    message: str = ""
    retry_after_s: float | None = None
