"""Prompts: text or ids, one or many, to lists of token ids that fit the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from camshaft.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.info import EngineInfo
    from camshaft.text import TextModel

_LONG = 20_000
"""Characters from which on a text is tokenised on a thread, so that an event loop stays responsive.
Measured on a slow core: 20,000 characters take about 10 ms."""


def split_prompts(value: object, param: str = "prompt") -> list[str | list[int]]:
    """Return the prompts that a value holds: a text, texts, ids, or lists of ids.

    Args:
        value: Anything.
        param: Field that a refusal names.

    Raises:
        RequestError: It is none of these, or empty, or holds an empty prompt.
    """
    if isinstance(value, str):
        return [_not_empty(value, param)]
    if not isinstance(value, Sequence) or not value:
        raise _refusal(
            f"{param} must be a text, token ids, or a list of one of these, and not be empty", param
        )
    if all(isinstance(one, str) for one in value):
        return [_not_empty(one, param) for one in value]
    if all(isinstance(one, Sequence) and not isinstance(one, str) for one in value):
        return [_ids(one, param) for one in value]
    return [_ids(value, param)]


class Prompter:
    """Tokenises for one engine. Refuses what does not fit; never shortens.

    Attributes:
        info: Of the engine.
    """

    def __init__(self, text: TextModel, info: EngineInfo) -> None:
        self._text = text
        self.info = info
        self._longest_token = 0

    async def encode(
        self,
        prompt: str | list[int],
        *,
        param: str = "prompt",
        affixes: bool = True,
        answer: int = 1,
    ) -> list[int]:
        """Return the ids of a raw prompt. Control-token literals in its text are control tokens.

        Args:
            prompt: Text or ids.
            param: Field that a refusal names.
            affixes: Whether the text gets what the model begins and ends texts with.
            answer: Tokens that there has to be room for behind it.

        Raises:
            RequestError: Too long, empty, or with ids that the model does not have.
        """
        if isinstance(prompt, list):
            return self._fitting(prompt, param, answer)
        encode = partial(self._text.tokenizer.encode, special=True, affixes=affixes)
        return self._fitting(
            await self._guarded(len(prompt.encode()), param, encode, prompt), param, answer
        )

    async def encode_all(
        self,
        prompts: Sequence[str | list[int]],
        *,
        param: str = "prompt",
        affixes: bool = True,
        answer: int = 1,
    ) -> list[list[int]]:
        """Return the ids of several raw prompts; as `encode`."""
        encoded = []
        for prompt in prompts:
            encoded.append(await self.encode(prompt, param=param, affixes=affixes, answer=answer))
            await asyncio.sleep(0)  # others get their turn between many prompts
        return encoded

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> list[int]:
        """Return the ids of a conversation, by the model's chat template.

        Raises:
            RequestError: The template refuses it, or it is too long.
        """
        work = self._guarded(
            _content_bytes(messages),
            "messages",
            self._text.template.render,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
        )
        return self._fitting(await work, "messages")

    def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of words, each at the start of a text and after a space."""
        encode = self._text.tokenizer.encode
        found = [
            tuple(encode(form, special=False, affixes=False))
            for word in words
            for form in (word, f" {word.lstrip(' ')}")
            if word
        ]
        if len(found) != 2 * len(words):
            raise RequestError("bad_words holds an empty one", param="bad_words")
        return tuple(dict.fromkeys(found))

    async def _guarded(
        self,
        size: int,
        param: str,
        encode: Callable[..., list[int]],
        *args: object,
        **options: object,
    ) -> list[int]:
        """Tokenise `size` bytes; on a thread if they are many, and not at all if far too many."""
        if size <= _LONG:
            return encode(*args, **options)
        longest = await asyncio.to_thread(self._bytes_of_longest_token)
        if size // longest > self.info.room:
            raise self._too_long(f"at least {size // longest}", param)
        return await asyncio.to_thread(encode, *args, **options)

    def _bytes_of_longest_token(self) -> int:
        if not self._longest_token:
            tokenizer = self._text.tokenizer
            ids = range(tokenizer.vocab_size)
            self._longest_token = max(len(tokenizer.token_bytes(one)) for one in ids)
        return self._longest_token

    def _fitting(self, ids: list[int], param: str, answer: int = 1) -> list[int]:
        if not ids:
            raise _refusal("the prompt is empty, and this model adds nothing to it", param)
        if len(ids) + answer > self.info.room:
            raise self._too_long(str(len(ids)), param)
        if min(ids) < 0 or max(ids) >= self.info.vocab:
            most = self.info.vocab - 1
            raise RequestError(f"{param} holds a token id outside 0 to {most}", param=param)
        return ids

    def _too_long(self, tokens: str, param: str) -> RequestError:
        return RequestError(
            f"{tokens} tokens in {param} are too many: this engine holds at most "
            f"{self.info.room} tokens, prompt and answer together",
            param=param,
            code="context_length_exceeded",
        )


def _not_empty(text: str, param: str) -> str:
    if not text:
        raise _refusal("a prompt is empty", param)
    return text


def _ids(values: Sequence[object], param: str) -> list[int]:
    if not values:
        raise _refusal("a prompt is empty", param)
    ids = [one for one in values if type(one) is int]
    if len(ids) != len(values):
        wrong = next(one for one in values if type(one) is not int)
        raise _refusal(f"a prompt of token ids holds {wrong!r:.40}", param)
    return ids


def _content_bytes(messages: Sequence[object]) -> int:
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = (part.get("text") for part in parts if isinstance(part, Mapping))
        total += sum(len(text.encode()) for text in texts if isinstance(text, str))
    return total


def _refusal(message: str, param: str) -> RequestError:
    return RequestError(message, param=param)
