"""What a worker and its controller say to each other: a line of JSON each way, in turns.

The controller asks for tokens, or what the worker is; the worker answers with times that it took
itself, so that the pipe is in none of them. A worker blocks on its pipe between two questions. This
module needs nothing but the standard library: peers live in environments without camshaft.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO


@dataclass(frozen=True, slots=True)
class Question:
    """A batch to generate: greedy, EOS ignored, nothing known of the prompts before.

    Attributes:
        prompts: Token ids, equally many in each.
        outputs: Tokens to generate after each.
    """

    prompts: list[list[int]]
    outputs: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch that was generated.

    Attributes:
        first_s: Seconds from the submission to the first token of the last prompt that got one.
        whole_s: Seconds from the submission to the last token of all.
        ids: Of the generated tokens, for each prompt.
    """

    first_s: float
    whole_s: float
    ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A question that could not be answered.

    Attributes:
        what: The worker's traceback.
    """

    what: str


class Engine(Protocol):
    """What a worker runs."""

    def generate(self, question: Question) -> Answer:
        """Generate a batch."""
        ...


ABOUT = "about"
"""The question which versions a worker runs, instead of a batch."""


def serve(engine: Engine, distributions: Sequence[str]) -> None:
    """Answer what comes on standard input until it ends.

    Args:
        engine: Loaded and ready.
        distributions: Whose versions are told.
    """
    answers = _private_stdout()
    for line in sys.stdin:
        print(json.dumps(_answer(engine, json.loads(line), distributions)), file=answers)
        answers.flush()


def _answer(engine: Engine, asked: Any, distributions: Sequence[str]) -> dict[str, Any]:  # noqa: ANN401
    if asked == ABOUT:
        return {name: version(name) for name in distributions}
    try:
        return asdict(engine.generate(Question(**asked)))
    except Exception:  # noqa: BLE001 - the controller must hear of it
        return asdict(Fault(traceback.format_exc()))


def _private_stdout() -> TextIO:
    """Keep standard output for answers: what libraries print goes to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def read_answer(line: str) -> Answer | Fault:
    """Return what a worker answered to a batch."""
    told: dict[str, Any] = json.loads(line)
    return Fault(**told) if "what" in told else Answer(**told)
