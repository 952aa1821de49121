"""Errors that a user can fix: each names the place, the fault and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class CamshaftError(Exception):
    """The base of every error that is shown without a traceback."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a recipe.

    Attributes:
        where: `file:line`, `--set a.b`, or the file alone.
        text: What is wrong and what is allowed.
    """

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class RecipeError(CamshaftError):
    """A recipe that does not compose; carries every fault, not just the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class PluginError(CamshaftError):
    """A plugin that cannot be used: unknown, broken, blocked, or made for another version."""


class CheckpointError(CamshaftError):
    """Weights, tokenizer or configuration that are missing, damaged or do not fit together."""


class DeviceError(CamshaftError):
    """The machine cannot do what the recipe asks of it: memory, dtype or capability."""


class RequestError(CamshaftError):
    """A request that is refused.

    Attributes:
        param: The field at fault, or None.
        code: A stable word for programs, such as `context_length_exceeded`.
        status: The HTTP status that the server answers with.
        retry_after_s: Seconds after which a new try makes sense, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` when one of `known` is near `word`, else an empty string."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
