"""Beam search over log-probabilities: which continuations are kept, and when to stop.

The rules are those of `generate(num_beams=...)` in the transformers library, so that answers can be
compared: a beam ends with an end token only where it is among the best `width` of a step, scores of
ended beams are divided by their length to the power of `length_penalty`, and sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from camshaft.request import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Beams:
    """How beams are searched for.

    Attributes:
        width: Beams of a prompt.
        length_penalty: Above 0 longer answers are favoured, below 0 shorter ones; at 0 the sum of
            log-probabilities decides, at 1 their mean.
        early_stopping: True ends a search as soon as `width` beams have ended. False ends it when
            the best running beam, as long as it is now, is no better than the worst of those;
            "never" when it could not become better up to the last token.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer, or the beginning of one.

    Attributes:
        tokens: Its ids.
        logprobs: Of each of them.
        score: Sum of their log-probabilities; of an ended beam, with its length penalty.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    score: np.float32


class BeamSearch:
    """The beams of one prompt.

    Attributes:
        running: Those to be continued, the best first; none once the search is over.
        ended: Those that are complete, the best first.
        end_ids: Tokens that end a beam.
    """

    def __init__(self, beams: Beams, end_ids: frozenset[int], most_tokens: int) -> None:
        """Begin with one beam without tokens.

        Args:
            beams: How to search.
            end_ids: A beam that takes one of them has ended.
            most_tokens: As has one of so many tokens.
        """
        self.running: list[Beam] = [Beam((), (), np.float32(0))]
        self.ended: list[Beam] = []
        self._beams = beams
        self.end_ids = end_ids
        self._most_tokens = most_tokens

    @property
    def alternatives(self) -> int:
        """Tokens that may continue one beam: enough should all that can end do so."""
        return candidates(self._beams.width, len(self.end_ids))

    def grow(self, found: Sequence[TokenLogprobs]) -> None:
        """Continue every running beam by one token.

        Args:
            found: For each running beam, at least `alternatives` of the best next tokens.
        """
        best = self._best(found)
        length = len(best[0].tokens)
        width = self._beams.width
        ends = [length >= self._most_tokens or one.tokens[-1] in self.end_ids for one in best]
        running = [one for one, end in zip(best, ends, strict=True) if not end][:width]
        for one, end in zip(best[:width], ends, strict=False):
            if end:
                self.ended.append(Beam(one.tokens, one.logprobs, self._with_penalty(one, length)))
        self.ended.sort(key=lambda one: -one.score)  # of equals the earlier stays before
        del self.ended[width:]
        self.running = [] if self._is_over(running, length) else running

    def _best(self, found: Sequence[TokenLogprobs]) -> list[Beam]:
        """Return the best continuations of all beams together."""
        choices = [
            (beam.score + np.float32(logprob), place, rank)
            for place, (beam, one) in enumerate(zip(self.running, found, strict=True))
            for rank, logprob in enumerate(one.top_logprobs)
        ]
        choices.sort(key=lambda one: -one[0])
        best = []
        for score, place, rank in choices[: self.alternatives]:
            beam, one = self.running[place], found[place]
            chosen = TokenLogprobs(one.top_logprobs[rank], rank + 1, one.top_ids, one.top_logprobs)
            tokens = (*beam.tokens, one.top_ids[rank])
            best.append(Beam(tokens, (*beam.logprobs, chosen), score))
        return best

    def _is_over(self, running: Sequence[Beam], length: int) -> bool:
        beams = self._beams
        if not running:
            return True
        if len(self.ended) < beams.width:
            return False
        if beams.early_stopping is True:
            return True
        reach = length
        if beams.early_stopping == "never" and beams.length_penalty > 0:
            reach = self._most_tokens
        return bool(self._with_penalty(running[0], reach) <= self.ended[-1].score)

    def _with_penalty(self, beam: Beam, length: int) -> np.float32:
        return beam.score / np.float32(float(length) ** self._beams.length_penalty)


def candidates(width: int, end_ids: int) -> int:
    """Return how many continuations a step looks at."""
    return max(2, 1 + end_ids) * width
