"""Ways to split a step into nano-batches, and what each part then holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .costs import Mix

if TYPE_CHECKING:
    from collections.abc import Iterator

EIGHTHS = 8
"""Shares are multiples of an eighth."""


@dataclass(frozen=True, slots=True)
class Split:
    """Settings of the scheduler `nano_batch`.

    Attributes:
        by: `tokens`: every part has its share of a step's tokens. `phase`: prompts are one part and
            requests that decode the other.
        shares: Of each part; of no meaning by phase.
    """

    by: Literal["tokens", "phase"]
    shares: tuple[float, ...] = ()

    @property
    def parts(self) -> int:
        """How many nano-batches."""
        return len(self.shares) or 2

    def __str__(self) -> str:
        if self.by == "phase":
            return "by phase"
        return f"tokens {'/'.join(f'{share:g}' for share in self.shares)}"

    def cut(self, mix: Mix, length: int) -> list[Mix]:
        """Return what each part holds; less than two parts where a step cannot be cut so.

        Args:
            mix: The step.
            length: Tokens of a prompt.
        """
        if self.by == "phase":
            parts = [Mix(mix.decodes, 0), Mix(0, mix.prompts)]
        else:
            parts = self._by_tokens(mix, length)
        return [one for one in parts if one.requests]

    def _by_tokens(self, mix: Mix, length: int) -> list[Mix]:
        """Cut between requests, those that decode first, next to where a share ends."""
        whole, last = mix.tokens(length), mix.requests - 1
        wanted = (share * whole for share in itertools.accumulate(self.shares[:-1]))
        cuts = {min(max(1, _request_at(tokens, mix, length)), last) for tokens in wanted}
        parts = []
        for start, end in itertools.pairwise([0, *sorted(cuts), mix.requests]):
            decodes = min(end, mix.decodes) - min(start, mix.decodes)
            parts.append(Mix(decodes, end - start - decodes))
        return parts


def _request_at(tokens: float, mix: Mix, length: int) -> int:
    """Return how many requests have about so many tokens."""
    if tokens <= mix.decodes:
        return round(tokens)
    return mix.decodes + round((tokens - mix.decodes) / length)


def candidates(most_parts: int = 3) -> Iterator[Split]:
    """Yield every split that is tried."""
    yield Split("phase")
    for count in range(2, most_parts + 1):
        for places in itertools.combinations(range(1, EIGHTHS), count - 1):
            eighths = [end - start for start, end in itertools.pairwise([0, *places, EIGHTHS])]
            yield Split("tokens", tuple(one / EIGHTHS for one in eighths))
