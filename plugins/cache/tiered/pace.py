"""Whether loading is worth it: how fast prompts are computed, and how fast tiers deliver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tier import Tiers

_LEAST_TOKENS = 64
"""Steps with fewer new prompt tokens tell nothing of what one costs."""
_WEIGHT = 0.2


class Pace:
    """Measures steps and compares."""

    def __init__(self, tiers: Tiers, unit_bytes: int) -> None:
        self._tiers = tiers
        self._unit_bytes = unit_bytes
        self._tokens: Counter[int] = Counter()
        self._began_s: dict[int, float] = {}
        self._ended_s = 0.0
        self._token_s = 0.0

    def computes(self, tokens: int, step: int, now: float) -> None:
        """Note that a step computes so many tokens of a prompt."""
        self._tokens[step] += tokens
        self._began_s.setdefault(step, now)

    def fence(self, step: int, now: float) -> None:
        """Note that all steps up to `step` are complete."""
        for done in [one for one in self._began_s if one <= step]:
            tokens, began_s = self._tokens.pop(done), self._began_s.pop(done)
            if done == step and tokens >= _LEAST_TOKENS:
                each = (now - max(began_s, self._ended_s)) / tokens
                known = self._token_s
                self._token_s = known + _WEIGHT * (each - known) if known else each
        self._ended_s = now

    def is_worth(self, sources: Sequence[int], tokens: int, now: float) -> bool:
        """Return whether units from these tiers come sooner than so many tokens are computed.

        What is not known yet is tried.
        """
        if not self._token_s:
            return True
        rates = {level: self._tiers[level].rate(now) for level in set(sources)}
        if not all(rates.values()):
            return True
        units = Counter(sources)
        seconds = sum(units[level] * self._unit_bytes / rate for level, rate in rates.items())
        return seconds < tokens * self._token_s
