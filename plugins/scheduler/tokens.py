"""How many tokens of a prompt go into a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Room:
    """What a step leaves to prompts.

    Attributes:
        tokens: Still free.
        slots: Still free.
        most: Tokens that were free before the first prompt.
        step: Most tokens of any step.
    """

    tokens: int
    slots: int
    most: int
    step: int


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """How prompts are cut.

    Attributes:
        most: Tokens of one request in a step.
        align: Chunks that leave some of a prompt for later end at multiples of it, where prompt,
            chunk and step have four times as many tokens; 1 cuts none.
        whole: Begin a prompt only in a step that holds all of it, or in an empty one.
    """

    most: int
    align: int = 1
    whole: bool = False


def tokens_for(start: int, left: int, room: Room, rule: ChunkRule) -> int:
    """Return how many tokens of a prompt to compute.

    Args:
        start: Tokens before them.
        left: Tokens that are still to be computed, at least 1.
        room: Of the step.
        rule: How prompts are cut.

    Returns:
        0 if too little is left for a chunk that ends where it should.
    """
    tokens, align = min(left, rule.most, room.tokens), rule.align
    if tokens == left or min(left, rule.most, room.most) < 4 * align:
        return tokens
    return max(0, tokens - (start + tokens) % align)  # never 0 for the first prompt of a step
