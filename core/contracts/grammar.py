"""GrammarEngine: which tokens a format allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A format: a JSON schema, a regular expression, a grammar in Lark form, or any JSON."""

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    text: str


class GrammarState(ABC):
    """One request's place in its grammar."""

    @abstractmethod
    def fill_mask(self, mask: NDArray[np.int32], row: int) -> None:
        """Set the bits of allowed tokens in mask [rows, ceil(V / 32)]; EOS when it may end."""

    @abstractmethod
    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance. Returns False, unchanged, when a token is not allowed."""

    @abstractmethod
    def rollback(self, tokens: int) -> None:
        """Go back by so many accepted tokens."""

    @abstractmethod
    def terminated(self) -> bool:
        """Return whether nothing but the end may follow."""


class GrammarEngine(ABC):
    """Constructed as `Engine(settings, token_bytes, eos_ids)`."""

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> GrammarState:
        """Return a fresh state. Called off the engine's thread; may take long.

        Raises:
            RequestError: The format is wrong or cannot be enforced in full; says which part.
        """
