"""The records that are sent, in OpenAI's form. Fields that are unset are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft import generate

LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot write."""


class PromptDetails(msgspec.Struct):
    """Of the prompt tokens."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails

    @classmethod
    def of(cls, usage: generate.Usage) -> Usage:
        """Translate."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            PromptDetails(usage.cached_tokens),
        )


class CompletionLogprobs(msgspec.Struct):
    """Of a text completion, token by token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]

    @classmethod
    def of(cls, reports: Sequence[generate.TokenReport], characters: int = 0) -> CompletionLogprobs:
        """Translate. The chosen token is always among the alternatives, as OpenAI has it.

        Args:
            reports: Of the tokens.
            characters: Before the text that they belong to.
        """
        return cls(
            text_offset=[characters + one.offset for one in reports],
            token_logprobs=[_finite(one.chosen.logprob) for one in reports],
            tokens=[_label(one.chosen) for one in reports],
            top_logprobs=[
                {_label(token): _finite(token.logprob) for token in (*one.top, one.chosen)}
                for one in reports
            ],
        )

    def behind(self, first: generate.TokenText, prompt: CompletionLogprobs) -> CompletionLogprobs:
        """Return these behind those of an echoed prompt, whose first token has none."""
        return CompletionLogprobs(
            [0, *prompt.text_offset, *self.text_offset],
            [None, *prompt.token_logprobs, *self.token_logprobs],
            [_label(first), *prompt.tokens, *self.tokens],
            [None, *prompt.top_logprobs, *self.top_logprobs],
        )


class CompletionChoice(msgspec.Struct):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """The body of /v1/completions, and its chunk."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"


class ChatTopLogprob(msgspec.Struct):
    """An alternative."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """A token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of an answer, token by token."""

    content: list[ChatLogprob]
    refusal: None = None

    @classmethod
    def of(cls, reports: Sequence[generate.TokenReport]) -> ChatLogprobs:
        """Translate."""
        return cls(
            [
                ChatLogprob(
                    one.chosen.text,
                    _finite(one.chosen.logprob),
                    list(one.chosen.data),
                    [
                        ChatTopLogprob(token.text, _finite(token.logprob), list(token.data))
                        for token in one.top
                    ],
                )
                for one in reports
            ]
        )


class ChatMessage(msgspec.Struct):
    """An answer."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatDelta(msgspec.Struct):
    """A piece of an answer."""

    content: str | UnsetType = UNSET
    role: Literal["assistant"] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The body of /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class ChatChunk(msgspec.Struct):
    """An event of a streamed chat completion."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Model(msgspec.Struct):
    """A served model."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "camshaft"
    object: Literal["model"] = "model"


class Models(msgspec.Struct):
    """All of them: one."""

    data: list[Model]
    object: Literal["list"] = "list"


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _label(token: generate.TokenText) -> str:
    r"""Name a token in a JSON object; bytes that are no text as `bytes:\xf0\x9f`.

    Else several tokens would share the name U+FFFD and all but one be lost.
    """
    if "\ufffd" not in token.text:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
