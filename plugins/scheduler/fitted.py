"""A predictor of step times that is fitted while the engine runs.

A step costs a fixed time, more if it has prompts, and a time for each prompt token, decoded token,
token of context and row of logits. The six costs are fitted by least squares over the steps so far,
older ones counting less (recursive least squares with exponential forgetting: Haykin, "Adaptive
Filter Theory"), here in the form that keeps the sums of products, so that costs can be
held at 0 or above by coordinate descent (Franc, Hlavac and Navara, CAIP 2005): one sweep a step.

Departures: errors count relative to the step, and less the further a step is off, so that one that
was interrupted moves little; and a cost of which no step told anything for long is not thrown over
by the first one that does.
"""

from __future__ import annotations

from math import inf
from operator import mul
from typing import TYPE_CHECKING

from camshaft.contracts.predictor import StepTimePredictor

if TYPE_CHECKING:
    from camshaft.contracts.model import ModelFacts
    from camshaft.contracts.predictor import StepShape
    from camshaft.facts import DeviceFacts

    from .components import FittedSettings

SHORTEST_S = 1e-6
"""No step is expected to take less."""

GUESSED = {"cpu": (2e10, 2e11), "simulated": (2e10, 2e11)}
"""Bytes and operations a second of devices that do not tell, by kind; others are accelerators."""

ACCELERATOR = (1e12, 1e14)


class Fitted(StepTimePredictor):
    """Starts from a roofline and learns from every step; both take microseconds."""

    def __init__(self, settings: FittedSettings, device: DeviceFacts, model: ModelFacts) -> None:
        super().__init__(settings, device, model)
        self._keep = 1 - 1 / settings.memory_steps
        self._damping = settings.damping_steps
        self._costs = roofline(device, model)
        size = len(self._costs)
        self._products = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size
        self._squares = [0.0] * size

    def predict(self, shape: StepShape) -> float:
        """See `StepTimePredictor.predict`."""
        seconds: float = sum(map(mul, self._costs, quantities(shape)))
        return max(SHORTEST_S, seconds)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """See `StepTimePredictor.observe`. A time of 0 tells nothing."""
        if not 0 < seconds < inf:
            return
        # the longer of both times, so that no step weighs more than if it was predicted
        scale = 1 / max(seconds, self.predict(shape))
        found = [one * scale for one in quantities(shape)]
        keep, target = self._keep, seconds * scale
        costs, products, targets = self._costs, self._products, self._targets
        for place, one in enumerate(found):
            targets[place] = wanted = keep * targets[place] + one * target
            # of one length, and to check it would take a tenth of the time
            row = [keep * old + one * other for old, other in zip(products[place], found)]  # noqa: B905
            products[place] = row
            if one:  # the step told of this cost: move it to where the squared error is least
                error = wanted - sum(map(mul, row, costs))
                usual = self._usual(place, one * one)
                costs[place] = max(0.0, costs[place] + error / (row[place] + usual))

    def _usual(self, place: int, square: float) -> float:
        """Return what observations of a cost that it is damped with would add to its product."""
        before = self._squares[place]
        self._squares[place] = before = before + (square - before) / 16 if before else square
        return self._damping * before


def quantities(shape: StepShape) -> tuple[float, ...]:
    """Return what the costs are multiplied with."""
    _, tokens, decode_tokens, context, rows = shape
    prompts = tokens - decode_tokens
    return (1, prompts > 0, prompts, decode_tokens, context, rows)


def roofline(device: DeviceFacts, model: ModelFacts) -> list[float]:
    """Return the costs of a step that reads weights and pages once and loses no time."""
    guessed = GUESSED.get(device.kind, ACCELERATOR)
    read_s = 1 / (device.read_bytes_s or guessed[0])
    operation_s = 1 / (max(device.flops.values(), default=0.0) or guessed[1])
    token_s = 2 * model.parameters * operation_s
    context_s = 4 * model.layers * model.hidden * read_s  # keys and values of two bytes each
    row_s = 2 * model.hidden * model.vocab * operation_s
    return [model.weight_bytes * read_s, 0.0, token_s, token_s, context_s, row_s]
