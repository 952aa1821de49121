"""What is asked for and what comes back, in text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from camshaft.request import EVERYWHERE, CacheScope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.request import SamplingParams, TokenLogprobs, TokenSpan
    from camshaft.text import Tokenizer

    from .beams import Beams

Finish = Literal["stop", "length"]
"""Why a choice ended. Whatever else ends a request is an error of the whole call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A question with one or more prompts and `n` answers to each.

    Attributes:
        prompts: Token ids, none empty.
        params: Checked (`check_params`). With a seed, answer j of a prompt draws with `seed + j`.
        modules: Spans with positions that stand before each prompt; see `TokenSpan`.
        n: Answers to each prompt.
        salt: Isolates its cached pages.
        scope: Their namespace, version and time to live; checked (`check_scope`).
        priority: Lower is more urgent.
        ttft_slo_s: Wanted seconds to the first token of each answer, or None.
        tpot_slo_s: Wanted seconds per later token, or None.
        tenant: Who asks, for schedulers that are fair.
        beams: The answers are the `n` best that a beam search finds; see `check_beams` for what it
            takes of `params`. They come when all are known.
    """

    prompts: Sequence[list[int]]
    params: SamplingParams
    modules: tuple[TokenSpan, ...] = ()
    n: int = 1
    salt: str = ""
    scope: CacheScope = EVERYWHERE
    priority: int = 0
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    tenant: str = ""
    beams: Beams | None = None

    @property
    def choices(self) -> int:
        """Answers in all. Answer j to prompt i has index `i * n + j`."""
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as text.

    Attributes:
        id: Its id.
        text: What it adds; U+FFFD for bytes that are no character by themselves.
        data: Its bytes.
        logprob: Natural logarithm of its probability.
    """

    id: int
    text: str
    data: bytes
    logprob: float

    @classmethod
    def of(cls, tokenizer: Tokenizer, token: int, logprob: float) -> TokenText:
        """Look a token up."""
        data = tokenizer.token_bytes(token)
        return cls(token, data.decode("utf-8", "replace"), data, logprob)


@dataclass(frozen=True, slots=True)
class TokenReport:
    """The logprobs of one token that was chosen, or that stands in the prompt.

    Attributes:
        chosen: The token.
        rank: Its place by probability, from 1.
        top: The most probable tokens, best first.
        offset: Characters of the answer's text, or the prompt's, before it.
    """

    chosen: TokenText
    rank: int
    top: tuple[TokenText, ...]
    offset: int

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs, offset: int
    ) -> TokenReport:
        """Say in text what an engine reported."""
        top = zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
        return cls(
            TokenText.of(tokenizer, token, logprobs.logprob),
            logprobs.rank,
            tuple(TokenText.of(tokenizer, one, value) for one, value in top),
            offset,
        )


@dataclass(slots=True)
class Delta:
    """What a step adds to one choice.

    Attributes:
        index: Of the choice.
        text: Complete characters, sure to stay.
        token_ids: Those that arrived since the last delta. With the text of a stop string taken
            off, they run up to and including the token in which it was complete.
        logprobs: One for each of them, if asked for.
        finish: On the last delta of a choice.
        stop_reason: The stop string or stop id that ended it.
        prompt_logprobs: On the first delta of a choice, if asked for: one for each token of the
            prompt but the first.
        embedding: On the last delta of a choice that is a vector.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenReport] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[TokenReport] = field(default_factory=list)
    embedding: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Choice(Delta):
    """A whole answer: its deltas, joined."""

    def add(self, delta: Delta) -> None:
        """Append what a step brought."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish is not None:
            self.finish, self.stop_reason = delta.finish, delta.stop_reason
            self.embedding = delta.embedding


@dataclass(slots=True)
class Usage:
    """Tokens of a call.

    Attributes:
        prompt_tokens: Of each prompt once, whatever `n` is.
        completion_tokens: Of all choices; exactly the ids that deltas carry.
        cached_tokens: Prompt tokens that the first answer to each prompt found in the cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
