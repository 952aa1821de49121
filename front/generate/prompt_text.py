"""The tokens of a prompt as text, for the logprobs that are reported of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.text import Detokenizer

from .answers import TokenReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.request import TokenLogprobs
    from camshaft.text import Tokenizer


class PromptText:
    """Reports the tokens of one prompt, from the second on, in order."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._place = 0
        self._characters = 0
        self._detokenizer = Detokenizer(tokenizer)

    def report(self, logprobs: TokenLogprobs) -> TokenReport:
        """Take the logprobs of the next token."""
        before = self._ids[self._place : self._place + 1]
        self._characters += len(self._detokenizer.push(before))
        self._place += 1
        token = self._ids[self._place]
        return TokenReport.of(self._tokenizer, token, logprobs, self._characters)
