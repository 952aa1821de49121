"""Keeping control tokens out of the hands of users.

A chat template writes control tokens as text, and so may a user. To tell them apart, the first
character of every control literal in user text is replaced by a stand-in (a private-use character
that occurs nowhere else) while the template runs. Lengths stay the same, so templates that strip,
slice or search still work. What is a control token in the disguised rendering is the template's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .tokenizer import Tokenizer

_PRIVATE_USE = re.compile("[\U000f0000-\U000ffffd]")


@dataclass(frozen=True, slots=True)
class StandIns:
    """Characters that do not occur in one request.

    Attributes:
        of: Stand-in by the character that it replaces.
        end_mark: One more, for marking a place.
    """

    of: Mapping[str, str]
    end_mark: str

    def restore(self, text: str) -> str:
        """Give every disguised literal its first character back."""
        return text.translate({ord(mark): character for character, mark in self.of.items()})


class ControlText:
    """Disguises control literals in user text and encodes the rendering that they end up in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare for the control tokens of a tokenizer."""
        self._tokenizer = tokenizer
        literals = [literal for literal in tokenizer.control_ids if literal]
        self._firsts = sorted({literal[0] for literal in literals})
        self._starts = _starts(literals)
        self._beginnings = frozenset(
            literal[:length] for literal in literals for length in range(1, len(literal))
        )
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def stand_ins(self, texts: Iterable[str]) -> StandIns:
        """Choose stand-ins that occur in none of the texts."""
        taken = {mark for text in texts for mark in _PRIVATE_USE.findall(text)}
        free = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in taken)
        return StandIns({first: next(free) for first in self._firsts}, next(free))

    def disguise(self, text: str, stand_ins: StandIns) -> str:
        """Replace the first character of each control literal, also of overlapping ones.

        So is that of a beginning at the end of the text, which what follows might complete.
        """
        if self._starts is None:
            return text
        hidden = self._starts.sub(lambda match: stand_ins.of[match[0]], text)
        for start in range(max(0, len(text) - self._longest_beginning), len(text)):
            if text[start:] in self._beginnings:
                hidden = hidden[:start] + stand_ins.of[text[start]] + hidden[start + 1 :]
        return hidden

    def encode(self, rendered: str, stand_ins: StandIns) -> list[int]:
        """Encode a rendering: the template's control tokens, and the users' literals as text.

        Where no user text would make a control token this is exactly the encoding of the text.
        """
        tokenizer = self._tokenizer
        text = stand_ins.restore(rendered)
        ids, spans = tokenizer.encode_with_spans(text)
        if text == rendered:
            return ids
        honest_ids, honest_spans = tokenizer.encode_with_spans(rendered)
        ours = self._controls(honest_ids, honest_spans)
        if self._controls(ids, spans) == ours:
            return ids
        out: list[int] = []
        at = 0  # in characters, which are the same in `text` and `rendered`
        for id, start, stop in ours:
            out += self._between(rendered[at:start], text[at:start])
            out.append(id)
            at = stop
        return out + self._between(rendered[at:], text[at:])

    def _between(self, rendered: str, text: str) -> list[int]:
        """Encode what stands between two control tokens."""
        is_harmless = rendered == text
        return self._tokenizer.encode(text, is_harmless, affixes=False) if text else []

    def _controls(self, ids: list[int], spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        is_special = self._tokenizer.is_special
        return [(id, *span) for id, span in zip(ids, spans, strict=True) if is_special(id)]


def _starts(literals: list[str]) -> re.Pattern[str] | None:
    """Make the pattern that matches the first character wherever a literal starts."""
    rests: dict[str, list[str]] = {}
    for literal in literals:
        rests.setdefault(literal[0], []).append(re.escape(literal[1:]))
    groups = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(groups)) if groups else None
