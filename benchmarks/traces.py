"""Requests in time that share prefixes: conversations, and questions about documents.

A trace holds token ids only, drawn from a seed. What is said depends on the answers, so a trace
says what a user adds and how long that takes, and whoever replays it joins the parts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIRST_ID = 10
"""Ids below it are control tokens in many vocabularies."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user adds to a conversation.

    Attributes:
        think_s: Seconds since the last answer, or for the first turn since the start.
        added: Token ids that follow all that was said.
        outputs: Tokens to answer with.
    """

    think_s: float
    added: tuple[int, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Conversations that run side by side.

    Attributes:
        name: Of the kind.
        conversations: Turns of each.
    """

    name: str
    conversations: tuple[tuple[Turn, ...], ...]

    @property
    def requests(self) -> int:
        """How many turns there are in all."""
        return sum(map(len, self.conversations))

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation at its end."""
        return max(
            sum(len(turn.added) + turn.outputs for turn in one) for one in self.conversations
        )


class Tokens:
    """Sequences as a tree of tokens: what a cache without any limit would hold."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        """Return how many tokens there are, those in common counted once."""
        return len(self._next)

    def known(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens are the beginning of something that was added."""
        place = 0
        for count, token in enumerate(tokens):
            found = self._next.get((place, token))
            if found is None:
                return count
            place = found
        return len(tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Add a sequence."""
        place = 0
        for token in tokens:
            place = self._next.setdefault((place, token), len(self._next) + 1)


def working_set(trace: Trace, answer: int = 0) -> int:
    """Return the tokens of all conversations at their ends, those in common counted once.

    Args:
        trace: Which.
        answer: Stands for the tokens that answers are made of.
    """
    tokens = Tokens()
    for turns in trace.conversations:
        said: list[int] = []
        for turn in turns:
            said += [*turn.added, *[answer] * turn.outputs]
        tokens.add(said)
    return len(tokens)


def _ids(chance: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(chance.randrange(FIRST_ID, vocab) for _ in range(count))


def multi_turn(
    seed: int,
    vocab: int,
    *,
    conversations: int = 100,
    turns: int = 8,
    system: int = 64,
    added: tuple[int, int] = (40, 160),
    outputs: tuple[int, int] = (20, 80),
    think_s: float = 20.0,
) -> Trace:
    """Return conversations under one system prompt, whose turns interleave by think time.

    Args:
        seed: Of everything.
        vocab: Ids are below it.
        conversations: How many.
        turns: Of each.
        system: Tokens that all begin with.
        added: Fewest and most tokens that a user adds.
        outputs: Fewest and most tokens of an answer.
        think_s: Mean seconds between an answer and the next turn, and spread of the beginnings.
    """
    chance = random.Random(f"multi-turn {seed}")
    common = _ids(chance, system, vocab)

    def conversation() -> tuple[Turn, ...]:
        made = []
        for number in range(turns):
            own = _ids(chance, chance.randint(*added), vocab)
            said = own if number else common + own
            made.append(Turn(chance.expovariate(1 / think_s), said, chance.randint(*outputs)))
        return tuple(made)

    return Trace("multi-turn", tuple(conversation() for _ in range(conversations)))


def shared_documents(
    seed: int,
    vocab: int,
    *,
    documents: int = 4,
    tokens: int = 4000,
    questions: int = 400,
    question: tuple[int, int] = (32, 96),
    outputs: tuple[int, int] = (32, 96),
    gap_s: float = 0.3,
) -> Trace:
    """Return single questions, each about one of a few documents, in random order.

    Args:
        seed: Of everything.
        vocab: Ids are below it.
        documents: How many.
        tokens: Of each.
        questions: In all.
        question: Fewest and most tokens of one.
        outputs: Fewest and most tokens of an answer.
        gap_s: Mean seconds between questions.
    """
    chance = random.Random(f"shared-documents {seed}")
    texts = [_ids(chance, tokens, vocab) for _ in range(documents)]
    due, made = 0.0, []
    for _ in range(questions):
        asked = chance.choice(texts) + _ids(chance, chance.randint(*question), vocab)
        made.append((Turn(due, asked, chance.randint(*outputs)),))
        due += chance.expovariate(1 / gap_s)
    return Trace("shared-documents", tuple(made))
