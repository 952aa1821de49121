"""StepTimePredictor: how long a step will take. Shared by schedulers and simulation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..facts import DeviceFacts
    from .model import ModelFacts


class StepShape(NamedTuple):
    """What drives the time of a step.

    Attributes:
        requests: B.
        tokens: T.
        decode_tokens: Tokens of requests with a single query token.
        context: Sum of context lengths over the requests, tokens.
        logits_rows: Q.
    """

    requests: int
    tokens: int
    decode_tokens: int
    context: int
    logits_rows: int


class StepTimePredictor(ABC):
    """Constructed as `Predictor(settings, device_facts, model_facts)`."""

    def __init__(self, settings: object, device: DeviceFacts, model: ModelFacts) -> None:
        self.settings = settings
        self.device = device
        self.model = model

    @abstractmethod
    def predict(self, shape: StepShape) -> float:
        """Return seconds, greater than 0 and finite for every shape. Pure; a few microseconds."""

    @abstractmethod
    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from one step."""
