"""Token ids to text while they arrive, in complete characters only."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the ids of one answer into text, piece by piece.

    It works on the bytes of tokens: bytes that may still become a character wait, those that no
    longer can become U+FFFD at once. So the joined pieces are the whole answer's decoding, however
    the ids were split.

    It never sees the prompt. Where a prompt ends inside a character, the bytes that the answer adds
    to it are no character by themselves and read as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        """Start an answer.

        Args:
            tokenizer: Whose ids these are.
            skip_special: Leave control tokens out of the text.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = _utf8_decoder(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is now complete, maybe none."""
        tokenizer = self._tokenizer
        kept = (id for id in ids if not (self._skip_special and tokenizer.is_special(id)))
        return self._utf8.decode(b"".join(map(tokenizer.token_bytes, kept)))

    def flush(self) -> str:
        """End the answer: bytes that still wait become U+FFFD."""
        return self._utf8.decode(b"", final=True)
