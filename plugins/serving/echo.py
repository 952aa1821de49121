"""Completions that begin with their prompt: `echo`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from camshaft.generate import TokenText
from camshaft.text import Detokenizer

from .wire import CompletionLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft import generate
    from camshaft.text import Tokenizer

    from .fields import CompletionFields


class Echo:
    """Puts prompts before answers, once each.

    With `max_tokens: 0` it also takes off the one token that the engine makes even then.
    """

    def __init__(
        self,
        fields: CompletionFields,
        tokenizer: Tokenizer,
        prompts: Sequence[str | list[int]],
        encoded: Sequence[Sequence[int]],
    ) -> None:
        """Prepare.

        Args:
            fields: As sent.
            tokenizer: Says what prompts of token ids read.
            prompts: As sent: text is echoed to the letter.
            encoded: The ids of each.
        """
        self._fields = fields
        self._texts = [
            sent if isinstance(sent, str) else _text(tokenizer, ids)
            for sent, ids in zip(prompts, encoded, strict=True)
        ]
        self._first = [TokenText.of(tokenizer, ids[0], 0.0) for ids in encoded]
        self._told: set[int] = set()

    @property
    def alone(self) -> bool:
        """Whether nothing is wanted behind the prompt."""
        return self._fields.max_tokens == 0

    def answer(self, delta: generate.Delta) -> tuple[generate.Delta, CompletionLogprobs | None]:
        """Return what is sent of a delta, and its logprobs if they are wanted."""
        if self.alone:
            delta = replace(
                delta, text="", token_ids=[], logprobs=[], finish="length", stop_reason=None
            )
        prompt = delta.index // self._fields.n
        text = self._texts[prompt]
        logprobs = None
        if self._fields.logprobs is not None:
            logprobs = CompletionLogprobs.of(delta.logprobs, len(text))
        if delta.index in self._told:
            return delta, logprobs
        self._told.add(delta.index)
        if logprobs is not None:
            of_prompt = CompletionLogprobs.of(delta.prompt_logprobs)
            logprobs = logprobs.behind(self._first[prompt], of_prompt)
        return replace(delta, text=text + delta.text), logprobs


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    detokenizer = Detokenizer(tokenizer)
    return detokenizer.push(ids) + detokenizer.flush()
