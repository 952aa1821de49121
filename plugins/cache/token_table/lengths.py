"""How many tokens requests are expected to write, by what those wrote that ended last.

Source: the history that LightLLM's router draws output lengths from (Gong et al., "Past-Future
Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025, arXiv 2507.10150, section 3).
Departure: a quantile of it, instead of draws, so that the same load is always admitted alike.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil, inf
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

LEAST, MOST = 16, 256
"""Answers before which nothing is learned, and those that are remembered."""

QUANTILE = 0.9
"""Share of answers that are no longer than expected. One that is longer may have to give way."""

_PROMPT = "token table prompt"


class Lengths:
    """Expects lengths, and learns them where it is told to."""

    def __init__(self, share: float | Literal["learned"]) -> None:
        """Expect `share` of what a request may write, or what is learned."""
        self._share = share
        self._ended: OrderedDict[int, int] = OrderedDict()
        self._expected = inf

    def expected(self, prefix: Prefix) -> int:
        """Return the length, with its prompt, at which a request is expected to end."""
        # with outputs once it has been preempted, so it is noted when it is first seen
        prompt: int = prefix.memo.setdefault(_PROMPT, len(prefix.tokens))
        most = max(0, prefix.most_tokens - prompt)
        if self._share == "learned":
            return prompt + int(min(most, self._expected))
        return prompt + ceil(self._share * most)

    def opened(self, uid: int) -> None:
        """Note that a request runs: if it seemed to have ended, it was preempted."""
        if self._ended.pop(uid, None) is not None:
            self._learn()

    def ended(self, uid: int, prefix: Prefix) -> None:
        """Note that a request ended, or was preempted."""
        self._ended[uid] = len(prefix.tokens) - prefix.memo.get(_PROMPT, len(prefix.tokens))
        if len(self._ended) > MOST:
            self._ended.popitem(last=False)
        self._learn()

    def _learn(self) -> None:
        if self._share == "learned" and len(self._ended) >= LEAST:
            self._expected = float(np.quantile(list(self._ended.values()), QUANTILE))
