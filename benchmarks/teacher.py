"""Teacher forcing through an engine: a text decides every token, and all logits are kept.

The text is cut into windows, and each window into stretches. A stretch is one request: what stands
before it is the prompt, its own tokens are forced one after the other. So everything of a recipe
takes part: prefill, cached pages, batched decoding, recorded steps; all but its sampler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from camshaft.contracts.sampling import Sampled, Sampler
from camshaft.errors import CamshaftError
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.request import Request, SamplingParams, TokenSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.sampling import DeviceLogprobs, RowContext
    from camshaft.loop.engine import Engine
    from camshaft.step import Admissions

WINDOW = 512
"""Tokens of the text that are read with a common beginning."""

STRETCH = 16
"""Tokens that are decoded one after the other before the next prompt."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A prompt and the tokens that are forced after it.

    Attributes:
        first: Number of its first position among all that are read.
        prompt: Token ids.
        forced: Token ids.
    """

    first: int
    prompt: tuple[int, ...]
    forced: tuple[int, ...]


def stretches(
    ids: Sequence[int], positions: int, *, window: int = WINDOW, stretch: int = STRETCH
) -> list[Stretch]:
    """Cut a text. The first token of a window has nothing before it and is not read.

    Args:
        ids: The text.
        positions: How many tokens to read.
        window: Tokens with a common beginning.
        stretch: Tokens that one request is forced to.

    Raises:
        CamshaftError: The text is too short.
    """
    found: list[Stretch] = []
    count = 0
    for begin in range(0, len(ids), window):
        part = tuple(ids[begin : begin + window])
        for start in range(1, len(part), stretch):
            if count == positions:
                return found
            forced = part[start : min(start + stretch, start + positions - count)]
            found.append(Stretch(count, part[:start], forced))
            count += len(forced)
    if count < positions:
        raise CamshaftError(f"the text has {count} positions to read, not {positions}")
    return found


class Teacher(Sampler):
    """Chooses the next token of the text, whatever the logits say, and keeps them.

    A request's seed is the number of its first position.
    """

    def __init__(self, forced: torch.Tensor, vocab: int, slots: int) -> None:
        """Prepare.

        Args:
            forced: int64 [P], the tokens of all positions, on the engine's device.
            vocab: V.
            slots: Of the engine, padding included.
        """
        self.logits = torch.full((len(forced), vocab), torch.nan, device=forced.device)
        self._forced = forced
        self._place = torch.zeros(slots, dtype=torch.int64, device=forced.device)

    def admit(self, admissions: Admissions) -> None:
        """See `Sampler.admit`."""
        place = torch.from_numpy(admissions.seeds[:, 0] + admissions.produced)
        slots = torch.from_numpy(admissions.slots).long()
        self._place[slots.to(self._place.device)] = place.long().to(self._place.device)

    def sample(self, logits: torch.Tensor, rows: RowContext, masks: Any | None) -> Sampled:  # noqa: ANN401
        """See `Sampler.sample`."""
        assert masks is None, "nothing here has a grammar"
        place = self._place[rows.slots]
        self.logits[place] = logits.float()
        self._place[rows.slots] = place + 1
        ones = torch.ones_like(place)
        return Sampled(self._forced[place][:, None], ones, ones.bool(), None)

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
    ) -> DeviceLogprobs:
        """See `Sampler.logprobs`; nothing that is read here asks for any."""
        raise CamshaftError("the teacher keeps logits and reports no logprobs")


def read(engine: Engine, text: Sequence[Stretch], vocab: int) -> torch.Tensor:
    """Return the float32 logits [P, V] before each position, on the engine's device.

    The engine keeps its own sampler after that.

    Raises:
        CamshaftError: A request ended early.
    """
    executor = engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    parts = executor.parts
    slots = engine.parts.limits.max_running + 1
    forced = torch.tensor(
        [token for one in text for token in one.forced], device=parts.state.device
    )
    own, teacher = parts.sampler, Teacher(forced, vocab, slots)
    parts.sampler = teacher
    try:
        for one in text:
            engine.submit(_request(one))
        _run(engine)
    finally:
        parts.sampler = own
    assert not teacher.logits.isnan().any(), "a position was not read"
    return teacher.logits


def _request(one: Stretch) -> Request:
    params = SamplingParams(
        max_tokens=len(one.forced), temperature=0.0, seed=one.first, ignore_eos=True
    )
    return Request(id=f"from-{one.first}", spans=(TokenSpan(list(one.prompt)),), params=params)


def _run(engine: Engine) -> None:
    while engine.has_work:
        for output in engine.step():
            if output.finish not in (None, "length"):
                raise CamshaftError(f"{output.id} ended with '{output.finish}': {output.message}")
