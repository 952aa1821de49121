"""Random runs that follow from their seed alone, for tests that say what must have happened.

Hypothesis mixes constants of all loaded modules of the project into what it draws, so what a seed
makes depends on which tests were imported before (with 6.170: by the one byte that says how many
rules of a state machine are switched off). A backend that draws none has no such memory.
"""

from __future__ import annotations

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

_NAME = "camshaft-seeded"


class _Seeded(HypothesisProvider):
    """Draws from the seed's random numbers, never from constants."""

    def _maybe_draw_constant(self, *args: object, **kwargs: object) -> None:
        return None


def seeded_backend() -> str:
    """Return the name of the backend, for `hypothesis.settings(backend=...)`."""
    AVAILABLE_PROVIDERS.setdefault(_NAME, _Seeded)
    return _NAME
