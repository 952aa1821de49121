"""How fast prompts get on beside the decodes that run, and who may join them."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ..latency import FEWEST, tokens_within
from .streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from camshaft.contracts.predictor import StepShape
    from camshaft.contracts.scheduler import Plan, RequestView, View

    from ..components import SloSettings

MOST_IN_FLIGHT = 8
"""Steps whose predicted times are kept."""


class Paused(NamedTuple):
    """Requests that decode and are left out of a step.

    Attributes:
        requests: They.
        priority: Of the prompt that gets their time.
    """

    requests: list[RequestView]
    priority: int


class Pace:
    """Of one engine; `measure` renews it for each plan.

    Attributes:
        now: When that was, seconds.
    """

    def __init__(self, settings: SloSettings) -> None:
        self.now = 0.0
        self._settings = settings
        self._streams = Streams(settings, 0.0)
        self._decodes: Sequence[RequestView] = ()
        self._shape: StepShape | None = None
        self._everyone: StepShape | None = None
        self._most = 1
        self._chunks: dict[int, int] = {}
        self._base_s = self._token_s = 0.0
        self._flying: deque[float] = deque(maxlen=MOST_IN_FLIGHT)

    def measure(
        self,
        view: View,
        decodes: Sequence[RequestView],
        prompts: Iterable[RequestView],
        most: int,
        paused: Paused | None = None,
    ) -> None:
        """Take the state of the engine in.

        Args:
            view: Of it.
            decodes: One token of each is in the step.
            prompts: Those that run and do not decode yet.
            most: Tokens that decodes leave.
            paused: Who decodes and is left out of the step.
        """
        self.now, self._decodes, self._most = view.now, decodes, most
        self._shape = shape = view.shape(decodes)
        one = shape._replace(requests=1, tokens=1, decode_tokens=1, logits_rows=1)
        alone = view.predict(one._replace(context=shape.context // max(1, len(decodes))))
        self._streams = Streams(self._settings, alone)
        self._streams.add(decodes, self.now + self._busy_s(view), view.steps_in_flight)
        for request in prompts:
            self._streams.join(request)
        self._everyone = shape
        if paused is not None:
            self._everyone = view.shape([*decodes, *paused.requests])
            for request in paused.requests:
                self._streams.pause(request, paused.priority)
        self._chunks = {}
        low, high = (view.predict(_with_prompt(shape, count)) for count in (1, most + 1))
        self._token_s = (high - low) / max(1, most)
        self._base_s = low - self._token_s

    def can_pause(self, request: RequestView, *, undated: bool) -> bool:
        """Whether one that decodes may be left out of the step that was measured.

        Args:
            request: It.
            undated: Whether it may if it wants no time per token.
        """
        return self._streams.can_pause(request, undated=undated)

    def chunk(self, view: View, priority: int) -> int:
        """Return the most tokens of prompts of this priority in the step that was measured."""
        chunk = self._chunks.get(priority)
        if chunk is None:
            chunk, spare = self._most, self._streams.spare_s(priority)
            if spare < inf and chunk:
                seconds = spare / self._settings.margin
                chunk = tokens_within(view, self._decodes, 0, chunk, seconds)
            self._chunks[priority] = chunk
        return chunk

    def first_token_s(self, tokens: int, priority: int) -> float:
        """Return how long it takes to compute a part of a prompt and read what follows.

        Beside streams that want a time per token, each step takes that long: chunks of single
        steps are sometimes longer and sometimes shorter.
        """
        chunk, tightest = self._most, self._streams.tightest_s(priority)
        if tightest < inf and self._token_s:
            chunk = min(chunk, max(FEWEST, int((tightest - self._base_s) / self._token_s)))
        chunk = max(1, chunk)
        whole = self._base_s + self._token_s * min(tokens, chunk)
        steps = -(-tokens // chunk)
        return self._settings.margin * (steps * self._base_s + tokens * self._token_s + whole)

    def allows(self, view: View, more: int, request: RequestView) -> bool:
        """Whether a request may decode beside those that do and `more` others, all in time."""
        streams, shape = self._streams, self._everyone
        tightest = min(streams.tightest_s(request.priority), streams.wanted_s(request))
        if tightest == inf or shape is None or not shape.requests + more:
            return True
        count = shape.requests + more + 1
        context = shape.context + request.known
        shape = shape._replace(
            requests=count, tokens=count, decode_tokens=count, context=context, logits_rows=count
        )
        return view.predict(shape) * self._settings.margin <= tightest

    def note(self, view: View, plan: Plan) -> None:
        """Remember how long the step of a plan will take."""
        shape = self._shape
        if shape is None:
            return
        tokens = sum(item.tokens for item in plan.items)
        self._flying.append(view.predict(_with_prompt(shape, tokens) if tokens else shape))

    def skip(self, view: View, decodes: Sequence[RequestView]) -> None:
        """Take in that a step holds decodes and nothing else."""
        self.now = view.now
        if decodes:
            self._flying.append(view.predict(view.shape(decodes)))

    def _busy_s(self, view: View) -> float:
        """Return how long the steps in flight will still take, at most."""
        flying = list(self._flying)
        return sum(flying[-view.steps_in_flight :]) if view.steps_in_flight else 0.0


def _with_prompt(shape: StepShape, tokens: int) -> StepShape:
    return shape._replace(
        requests=shape.requests + 1,
        tokens=shape.tokens + tokens,
        context=shape.context + tokens,
        logits_rows=shape.logits_rows + 1,
    )
