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
    """A format: a JSON schema, a regular expression, a grammar in Lark form, or any JSON object.

    Attributes:
        kind: What `text` is.
        text: The format; for `choice` a JSON list of texts, for `json_object` nothing.
    """

    kind: Literal["json_schema", "json_object", "regex", "lark", "choice"]
    text: str


class GrammarState(ABC):
    """One request's place in its grammar."""

    @abstractmethod
    def fill_mask(self, mask: NDArray[np.int32], row: int) -> None:
        """Overwrite a row of mask [rows, ceil(V / 32)] with the bits of allowed tokens.

        Bit `i % 32` of word `i // 32` is token i. All EOS ids are allowed when the text may end;
        other ids without bytes, and bits beyond V, never are.
        """

    @abstractmethod
    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance over all of `tokens`, or return False, unchanged, when one is not allowed."""

    @abstractmethod
    def rollback(self, tokens: int) -> None:
        """Go back by so many accepted tokens."""

    @abstractmethod
    def terminated(self) -> bool:
        """Return whether nothing but the end may follow."""


class GrammarEngine(ABC):
    """Constructed as `Engine(settings, token_bytes, eos_ids)`.

    `token_bytes` holds what each of the V ids adds to a text: nothing for control tokens, padding
    and EOS. `eos_ids` are all ids that end a text.
    """

    @abstractmethod
    def compile(self, spec: GrammarSpec) -> GrammarState:
        """Return a fresh state. Called off the engine's thread; may take long.

        Raises:
            RequestError: The format is wrong or cannot be enforced in full; says which part.
        """
